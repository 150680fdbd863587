// A libcuda whose device is the host's memory: it computes nothing and writes down what a program
// asks of it, for test_example.py. Lines of RECORD: "launch NAME grid block smem parameters", "map
// ..." and "memory ADDRESS bytes" of the small pieces of memory at each launch.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {

std::map<std::uint64_t, std::size_t> memories;

std::FILE* record() {
  static std::FILE* const file = std::fopen(std::getenv("RECORD"), "w");
  return file;
}

int setting(char const* name, int standard) {
  char const* const value = std::getenv(name);
  return value == nullptr ? standard : std::atoi(value);
}

void write_hex(void const* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    std::fprintf(record(), "%02x", static_cast<unsigned char const*>(data)[i]);
  }
  std::fputc('\n', record());
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) {
  *version = setting("DRIVER_VERSION", 13000);
  return 0;
}
int cuDeviceGet(int* device, int) {
  *device = 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = nullptr;
  return 0;
}
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxSynchronize() { return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 16   ? 132
           : attribute == 75 ? setting("CAPABILITY", 90) / 10
                             : setting("CAPABILITY", 90) % 10;
  return 0;
}
int cuGetErrorString(int, char const** text) {
  *text = "refused";
  return 0;
}
int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  *address = reinterpret_cast<std::uint64_t>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  memories[*address] = bytes;
  return 0;
}
int cuMemFree_v2(std::uint64_t address) {
  memories.erase(address);
  std::free(reinterpret_cast<void*>(address));
  return 0;
}
int cuMemsetD8_v2(std::uint64_t address, unsigned char byte, std::size_t bytes) {
  std::memset(reinterpret_cast<void*>(address), byte, bytes);
  return 0;
}
int cuMemcpyHtoD_v2(std::uint64_t address, void const* from, std::size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(address), from, bytes);
  return 0;
}
int cuMemcpyDtoH_v2(void* to, std::uint64_t address, std::size_t bytes) {
  std::memcpy(to, reinterpret_cast<void const*>(address), bytes);
  return 0;
}
int cuModuleLoadData(void** module, void const* image) {
  *module = nullptr;
  return std::memcmp(image,
                     "\x7f"
                     "ELF",
                     4) == 0
             ? 0
             : 200;
}
int cuModuleGetFunction(void** function, void*, char const* name) {
  *function = new std::string(name);
  return 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }

int cuTensorMapEncodeTiled(void* map, int data_type, std::uint32_t rank, std::uint64_t address,
                           std::uint64_t const* sizes, std::uint64_t const* strides,
                           std::uint32_t const* box, std::uint32_t const* element_strides,
                           int interleave, int swizzle, int l2_promotion, int fill) {
  static int number = 0;
  if (reinterpret_cast<std::uint64_t>(map) % 64 != 0) return 1;
  std::memset(map, ++number, 128);
  std::fprintf(record(), "map %d %d %llu %d %d %d %d", number, data_type,
               static_cast<unsigned long long>(address), interleave, swizzle, l2_promotion, fill);
  auto const list = [](auto const* values, std::uint32_t count) {
    std::fprintf(record(), " |");
    for (std::uint32_t i = 0; i < count; ++i) {
      std::fprintf(record(), " %llu", static_cast<unsigned long long>(values[i]));
    }
  };
  list(sizes, rank);
  list(strides, rank - 1);
  list(box, rank);
  list(element_strides, rank);
  std::fputc('\n', record());
  return 0;
}

// PARAMETER_BYTES: a file, lines of a kernel and the size of its struct.
int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned smem_bytes, void*,
                   void** arguments, void**) {
  constexpr std::size_t kSmall = 1 << 20;
  for (auto const& [address, bytes] : memories) {
    if (bytes > kSmall) continue;
    std::fprintf(record(), "memory %llu ", static_cast<unsigned long long>(address));
    write_hex(reinterpret_cast<void const*>(address), bytes);
  }
  std::string const& name = *static_cast<std::string*>(function);
  std::FILE* const sizes = std::fopen(std::getenv("PARAMETER_BYTES"), "r");
  char known[256];
  unsigned long bytes = 0;
  while (std::fscanf(sizes, "%255s %lu", known, &bytes) == 2 && name != known) {
  }
  std::fclose(sizes);
  if (name != known) return 1;
  std::fprintf(record(), "launch %s %u %u %u %u %u %u %u ", name.c_str(), grid_x, grid_y, grid_z,
               block_x, block_y, block_z, smem_bytes);
  write_hex(arguments[0], bytes);
  std::fflush(record());
  return 0;
}

}  // extern "C"
