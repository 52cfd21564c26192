// A CUDA driver that does nothing: what PyTorch and Triton look up in libcuda.so.1. Launches of Triton's kernels are
// noted by `runtime.cpp`, which has to be loaded first.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {

void nogpu_note(const char*) __attribute__((weak));

struct Config {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, memory;
};

struct Function {
  char name[256];
};

int cuDeviceGet(int* device, int) { return *device = 0, 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuGetErrorString(int, const char** text) { return *text = "none", 0; }
int cuCtxGetCurrent(void** context) { return *context = (void*)1, 0; }
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { return *flags = 0, *active = 1, 0; }
int cuModuleLoadData(void** module, const void*) { return *module = (void*)1, 0; }
int cuPointerGetAttribute(void* data, int, unsigned long long at) { return *(unsigned long long*)data = at, 0; }
int cuOccupancyMaxActiveClusters(int* count, void*, const void*) { return *count = 1, 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, void*, int, size_t) { return *count = 2, 0; }
int cuFuncGetAttribute(int* value, int which, void*) { return *value = which == 0 ? 1024 : 0, 0; }

int cuDeviceGetAttribute(int* value, int which, int) {
  // By their numbers in cuda.h: threads of a block, shared memory, warp, threads and processors, capability, registers.
  static const int known[][2] = {{1, 1024}, {8, 49152}, {10, 32}, {16, 132},   {39, 2048},
                                 {75, 9},   {76, 0},    {82, 65536}, {97, 232448}};
  *value = 1;
  for (auto& each : known)
    if (each[0] == which) *value = each[1];
  return 0;
}

int cuModuleGetFunction(void** function, void*, const char* name) {
  auto made = (Function*)calloc(1, sizeof(Function));
  strncpy(made->name, name, sizeof(made->name) - 1);
  return *function = made, 0;
}

int cuLaunchKernelEx(const Config* how, void* function, void**, void**) {
  char line[400];
  snprintf(line, sizeof line, "triton\t%s\t%u,%u,%u\t%u\t%u", ((Function*)function)->name, how->grid_x, how->grid_y,
           how->grid_z, how->block_x, how->memory);
  if (nogpu_note) nogpu_note(line);
  return 0;
}

int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                   unsigned memory, void*, void**, void**) {
  Config how = {x, y, z, threads, 1, 1, memory};
  return cuLaunchKernelEx(&how, function, nullptr, nullptr);
}

#define NOTHING(name) \
  int name() { return 0; }
NOTHING(cuInit)
NOTHING(cuCtxFromGreenCtx)
NOTHING(cuCtxGetLimit)
NOTHING(cuCtxPopCurrent)
NOTHING(cuCtxPushCurrent)
NOTHING(cuCtxSetCurrent)
NOTHING(cuCtxSetLimit)
NOTHING(cuDevResourceGenerateDesc)
NOTHING(cuDevSmResourceSplitByCount)
NOTHING(cuDeviceGetDevResource)
NOTHING(cuDevicePrimaryCtxRetain)
NOTHING(cuFuncSetAttribute)
NOTHING(cuFuncSetCacheConfig)
NOTHING(cuGreenCtxCreate)
NOTHING(cuGreenCtxDestroy)
NOTHING(cuGreenCtxStreamCreate)
NOTHING(cuLaunchCooperativeKernel)
NOTHING(cuLinkAddData_v2)
NOTHING(cuLinkComplete)
NOTHING(cuLinkCreate_v2)
NOTHING(cuMemAddressFree)
NOTHING(cuMemAddressReserve)
NOTHING(cuMemCreate)
NOTHING(cuMemExportToShareableHandle)
NOTHING(cuMemGetAllocationGranularity)
NOTHING(cuMemGetAllocationPropertiesFromHandle)
NOTHING(cuMemImportFromShareableHandle)
NOTHING(cuMemMap)
NOTHING(cuMemRelease)
NOTHING(cuMemRetainAllocationHandle)
NOTHING(cuMemSetAccess)
NOTHING(cuMemUnmap)
NOTHING(cuMemsetD32Async)
NOTHING(cuModuleLoad)
NOTHING(cuModuleLoadDataEx)
NOTHING(cuModuleUnload)
NOTHING(cuMulticastAddDevice)
NOTHING(cuMulticastBindMem)
NOTHING(cuMulticastCreate)
NOTHING(cuMulticastUnbind)
NOTHING(cuPointerGetAttributes)
NOTHING(cuStreamWriteValue32)
NOTHING(cuTensorMapEncodeTiled)
}
