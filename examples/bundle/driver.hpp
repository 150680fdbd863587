// The CUDA driver through dlopen: what a program needs to run kernels of a bundle, and no CUDA
// headers or libraries.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace example {

using DevicePointer = std::uint64_t;

// Functions of libcuda by their names; a call throws unless it returns CUDA_SUCCESS.
class Driver {
 public:
  Driver() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (library_ == nullptr) throw std::runtime_error(std::string("no CUDA driver: ") + dlerror());
    call<unsigned>("cuInit", 0);
    call<int*>("cuDriverGetVersion", &version_);
    call<int*, int>("cuDeviceGet", &device_, 0);
    void* context = nullptr;
    call<void**, int>("cuDevicePrimaryCtxRetain", &context, device_);
    call<void*>("cuCtxSetCurrent", context);
  }

  template <class... Arguments>
  void call(char const* name, Arguments... arguments) const {
    using Function = int (*)(Arguments...);
    auto const function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) throw std::runtime_error(std::string("this driver has no ") + name);
    int const status = function(arguments...);
    if (status == 0) return;
    char const* text = nullptr;
    using ErrorText = int (*)(int, char const**);
    auto const error_text = reinterpret_cast<ErrorText>(dlsym(library_, "cuGetErrorString"));
    if (error_text != nullptr) error_text(status, &text);
    throw std::runtime_error(std::string(name) + ": " + (text == nullptr ? "error" : text));
  }

  // CUDA version that it speaks: 1000 * major + 10 * minor.
  int version() const { return version_; }
  int num_sms() const { return attribute(16); }
  int major() const { return attribute(75); }
  int minor() const { return attribute(76); }
  void synchronize() const { call("cuCtxSynchronize"); }

 private:
  int attribute(int number) const {
    int value = 0;
    call<int*, int, int>("cuDeviceGetAttribute", &value, number, device_);
    return value;
  }

  void* library_ = nullptr;
  int version_ = 0;
  int device_ = 0;
};

// Device memory.
class Memory {
 public:
  // Filled with `byte`.
  Memory(Driver const& driver, std::size_t bytes, unsigned char byte) : driver_(driver) {
    driver_.call<DevicePointer*, std::size_t>("cuMemAlloc_v2", &address_, bytes + 1);
    driver_.call<DevicePointer, unsigned char, std::size_t>("cuMemsetD8_v2", address_, byte, bytes);
  }

  template <class T>
  Memory(Driver const& driver, std::vector<T> const& values)
      : Memory(driver, values.size() * sizeof(T), 0) {
    driver_.call<DevicePointer, void const*, std::size_t>("cuMemcpyHtoD_v2", address_,
                                                          values.data(), values.size() * sizeof(T));
  }

  Memory(Memory const&) = delete;
  Memory& operator=(Memory const&) = delete;
  ~Memory() {
    try {
      driver_.call<DevicePointer>("cuMemFree_v2", address_);
    } catch (std::runtime_error const&) {  // of a launch before, which has been told
    }
  }

  DevicePointer address() const { return address_; }

  // The first `count` values.
  template <class T>
  std::vector<T> read(std::size_t count) const {
    std::vector<T> values(count);
    driver_.call<void*, DevicePointer, std::size_t>("cuMemcpyDtoH_v2", values.data(), address_,
                                                    count * sizeof(T));
    return values;
  }

 private:
  Driver const& driver_;
  DevicePointer address_ = 0;
};

}  // namespace example
