// A CUDA driver without a GPU, for tests of the host side. It is compiled against the real cuda.h,
// so that prototypes and struct layouts are the driver's; calls of interest are written to a log.
//
// Device 0 is an "H200" (9.0), device 1 an "A100" (8.0). A library is any image that starts as an
// ELF file; its only kernel is "k".
#include <cuda.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char log_text[1 << 16];
static size_t log_size;
static _Thread_local CUcontext current, pushed_over;
static int contexts[2];  // their addresses are the two primary contexts
static int library, kernel;
static int max_dynamic_smem[2] = {49152, 49152};

size_t fake_param_bytes;
unsigned char fake_params[4096];

const char* fake_log(void) { return log_text; }

void fake_reset(void) {
  log_size = 0;
  log_text[0] = 0;
  current = NULL;
}

void fake_set_current(int device) { current = device < 0 ? NULL : (CUcontext)&contexts[device]; }

static void note(const char* format, ...) {
  if (log_size > sizeof log_text - 1024) return;  // full: tests look at it long before
  va_list args;
  va_start(args, format);
  log_size += vsnprintf(log_text + log_size, sizeof log_text - log_size, format, args);
  va_end(args);
}

CUresult cuInit(unsigned int flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int* version) {
  *version = 13020;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_FAKE";
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = "words of the driver";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = 2;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  snprintf(name, size, device ? "FAKE A100" : "FAKE H200");
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  *bytes = (device ? 80ull : 141ull) << 30;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = device ? 8 : 9;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = 0;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = device ? 108 : 132;
      break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      *value = device ? 40 << 20 : 50 << 20;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      *value = 65536;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      *value = device ? 167936 : 233472;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = device ? 166912 : 232448;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *device = (int)((int*)current - contexts);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  note("retain %d\n", device);
  *context = (CUcontext)&contexts[device];
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  note("push %d\n", (int)((int*)context - contexts));
  pushed_over = current;
  current = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  note("pop\n");
  *context = current;
  current = pushed_over;
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* out, const void* code, CUjit_option* jit_options,
                           void** jit_values, unsigned int num_jit, CUlibraryOption* options,
                           void** values, unsigned int num_options) {
  note("load %u %u\n", num_jit, num_options);
  if (memcmp(code, "\177ELF", 4)) return CUDA_ERROR_INVALID_IMAGE;
  *out = (CUlibrary)&library;
  return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary from) {
  note("unload\n");
  return from == (CUlibrary)&library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary from, const char* name) {
  if (from != (CUlibrary)&library || strcmp(name, "k")) return CUDA_ERROR_NOT_FOUND;
  *out = (CUkernel)&kernel;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel of) {
  if (of != (CUkernel)&kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  note("onto %d\n", (int)((int*)current - contexts));
  *function = (CUfunction)&kernel;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel of,
                              CUdevice device) {
  if (of != (CUkernel)&kernel) return CUDA_ERROR_INVALID_HANDLE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = 168;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = max_dynamic_smem[device];
      break;
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = 384;
      break;
    default:
      *value = 1000 + attribute;
  }
  return CUDA_SUCCESS;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel of,
                              CUdevice device) {
  if (of != (CUkernel)&kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
  note("smem %d on %d\n", value, device);
  max_dynamic_smem[device] = value;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads,
                                                     size_t smem) {
  if (function != (CUfunction)&kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  note("occupancy %d %zu\n", threads, smem);
  *blocks = 2048 / threads;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params,
                          void** extra) {
  if (function != (CUfunction)&kernel || extra) return CUDA_ERROR_INVALID_HANDLE;
  if (!config->hStream && !current) return CUDA_ERROR_INVALID_CONTEXT;
  if (config->gridDimX == 0) return CUDA_ERROR_INVALID_VALUE;
  note("launch grid %u %u %u block %u %u %u smem %u stream %p", config->gridDimX, config->gridDimY,
       config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ,
       config->sharedMemBytes, (void*)config->hStream);
  for (unsigned int i = 0; i < config->numAttrs; ++i) {
    CUlaunchAttributeValue value = config->attrs[i].value;
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      note(" cluster %u %u %u", value.clusterDim.x, value.clusterDim.y, value.clusterDim.z);
    else if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      note(" pdl %d", value.programmaticStreamSerializationAllowed);
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  note("\n");
  memcpy(fake_params, params[0], fake_param_bytes);
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  note("encode type %d rank %u dims", type, rank);
  for (cuuint32_t i = 0; i < rank; ++i) note(" %llu", (unsigned long long)dims[i]);
  note(" strides");
  for (cuuint32_t i = 0; i + 1 < rank; ++i) note(" %llu", (unsigned long long)strides[i]);
  note(" box");
  for (cuuint32_t i = 0; i < rank; ++i) note(" %u", box[i]);
  note(" steps");
  for (cuuint32_t i = 0; i < rank; ++i) note(" %u", element_strides[i]);
  note(" interleave %d swizzle %d promotion %d fill %d aligned %d\n", interleave, swizzle,
       promotion, fill, (int)((size_t)map % 64 == 0));
  memset(map, 0xA5, sizeof *map);
  memcpy(map, &address, sizeof address);
  return CUDA_SUCCESS;
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  note("replace\n");
  memcpy(map, &address, sizeof address);
  return CUDA_SUCCESS;
}
