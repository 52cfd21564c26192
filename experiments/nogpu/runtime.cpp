// A CUDA runtime and cuBLAS that do nothing but say what they were asked for. Memory is taken from the host and hardly
// ever touched, so that models of any size fit; numbers that programs fetch from it are 0.
//
// Each line of the file that NOGPU_LOG names is a launch: what it is, its name or size, and its grid.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#define CALL extern "C" __attribute__((visibility("default")))

namespace {

constexpr size_t kCopied = 4 << 20;  // bytes of a copy that is made; larger ones are only noted
constexpr int kProcessors = 132, kSharedMemory = 232448, kL2 = 50 << 20;
bool watching = false, capturing = false;
std::mutex mutex;

FILE* log() {
  static FILE* file = [] {
    const char* path = getenv("NOGPU_LOG");
    FILE* opened = path ? fopen(path, "a") : stderr;
    setvbuf(opened, nullptr, _IOLBF, 0);
    return opened;
  }();
  return file;
}

std::map<const void*, std::string>& names() {
  static std::map<const void*, std::string> known;
  return known;
}

std::map<void*, size_t>& sizes() {
  static std::map<void*, size_t> known;
  return known;
}

void* take(size_t bytes) {
  bytes = (bytes + 4095) & ~size_t(4095);
  if (!bytes) bytes = 4096;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  std::lock_guard<std::mutex> guard(mutex);
  sizes()[at] = bytes;
  return at;
}

void give_back(void* at) {
  std::lock_guard<std::mutex> guard(mutex);
  if (at && sizes().count(at)) {
    munmap(at, sizes()[at]);
    sizes().erase(at);
  }
}

template <typename Handle>
void make(Handle* handle) {
  *handle = (Handle)calloc(1, 256);
}

cudaError_t launch(const void* kernel, dim3 grid, dim3 block) {
  if (watching) {
    const char* name = names().count(kernel) ? names()[kernel].c_str() : "?";
    fprintf(log(), "kernel\t%s\t%u,%u,%u\t%u\n", name, grid.x, grid.y, grid.z, block.x * block.y * block.z);
  }
  return cudaSuccess;
}

int bytes_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : type == CUDA_R_64F ? 8 : 2; }

cublasStatus_t multiply(long m, long n, long k, long batch, int in, int out) {
  if (watching) fprintf(log(), "gemm\t%ld,%ld,%ld,%ld\t%d\t%d\n", m, n, k, batch, in, out);
  return CUBLAS_STATUS_SUCCESS;
}

struct Layout {
  cudaDataType type;
  uint64_t rows, columns;
  int batch;
};

thread_local struct {
  dim3 grid, block;
  size_t memory;
  void* stream;
} pushed;

}  // namespace

// For the program that watches.
CALL void nogpu_watch(int on) { watching = on; }
CALL void nogpu_note(const char* line) {
  if (watching) fprintf(log(), "%s\n", line);
}

// What compiled code calls when it is loaded, and to launch.
CALL void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
CALL void __cudaRegisterFatBinaryEnd(void**) {}
CALL void __cudaUnregisterFatBinary(void**) {}
CALL void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
CALL char __cudaInitModule(void**) { return 1; }
CALL void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                                 int*) {
  names()[host] = name;
}
CALL unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t memory, void* stream) {
  pushed = {grid, block, memory, stream};
  return 0;
}
CALL cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* memory, void* stream) {
  *grid = pushed.grid, *block = pushed.block, *memory = pushed.memory, *(void**)stream = pushed.stream;
  return cudaSuccess;
}
CALL cudaError_t cudaLaunchKernel(const void* f, dim3 g, dim3 b, void**, size_t, cudaStream_t) { return launch(f, g, b); }
CALL cudaError_t __cudaLaunchKernel(const void* f, dim3 g, dim3 b, void**, size_t, cudaStream_t) {
  return launch(f, g, b);
}
CALL cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* f, void**) {
  return launch(f, how->gridDim, how->blockDim);
}
CALL cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* f) {
  *kernel = (cudaKernel_t)f;
  return cudaSuccess;
}
CALL cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* f) { return cudaGetKernel(kernel, f); }

// The device: one H200.
CALL cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "NVIDIA H200");
  p->totalGlobalMem = size_t(140) << 30;
  p->major = 9;
  p->multiProcessorCount = kProcessors;
  p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->sharedMemPerBlock = 49152, p->sharedMemPerBlockOptin = kSharedMemory, p->sharedMemPerMultiprocessor = 233472;
  p->l2CacheSize = kL2;
  p->textureAlignment = 512;
  p->concurrentKernels = p->unifiedAddressing = p->memoryPoolsSupported = 1;
  return cudaSuccess;
}
CALL cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  static const std::map<int, int> known = {
      {cudaDevAttrMultiProcessorCount, kProcessors},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, kSharedMemory},
      {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
      {cudaDevAttrComputeCapabilityMajor, 9},
      {cudaDevAttrComputeCapabilityMinor, 0},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMaxGridDimX, 2147483647},
      {cudaDevAttrMaxGridDimY, 65535},
      {cudaDevAttrMaxGridDimZ, 65535},
      {cudaDevAttrL2CacheSize, kL2},
  };
  auto found = known.find(which);
  *value = found == known.end() ? 1 : found->second;
  return cudaSuccess;
}
CALL cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
CALL cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
CALL cudaError_t cudaSetDevice(int) { return cudaSuccess; }
CALL cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
CALL cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
CALL cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int) { return strncpy(text, "0000:00:00.0", size), cudaSuccess; }
CALL cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* most) { return *least = 0, *most = -5, cudaSuccess; }
CALL cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
CALL cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
CALL cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) { return *pool = nullptr, cudaSuccess; }
CALL cudaError_t cudaDeviceSynchronize() {
  if (watching) fprintf(log(), "sync\tdevice\n");
  return cudaSuccess;
}
CALL cudaError_t cudaGetLastError() { return cudaSuccess; }
CALL cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
CALL const char* cudaGetErrorString(cudaError_t) { return "none"; }
CALL const char* cudaGetErrorName(cudaError_t) { return "none"; }
CALL cudaError_t cudaProfilerStart() { return cudaSuccess; }
CALL cudaError_t cudaProfilerStop() { return cudaSuccess; }

// Memory.
CALL cudaError_t cudaMalloc(void** at, size_t bytes) {
  *at = take(bytes);
  return *at == MAP_FAILED ? cudaErrorMemoryAllocation : cudaSuccess;
}
CALL cudaError_t cudaMallocAsync(void** at, size_t bytes, cudaStream_t) { return cudaMalloc(at, bytes); }
CALL cudaError_t cudaHostAlloc(void** at, size_t bytes, unsigned) { return cudaMalloc(at, bytes); }
CALL cudaError_t cudaFree(void* at) { return give_back(at), cudaSuccess; }
CALL cudaError_t cudaFreeAsync(void* at, cudaStream_t) { return cudaFree(at); }
CALL cudaError_t cudaFreeHost(void* at) { return cudaFree(at); }
CALL cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
CALL cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
CALL cudaError_t cudaMemGetInfo(size_t* left, size_t* all) {
  *left = size_t(139) << 30, *all = size_t(140) << 30;
  return cudaSuccess;
}
CALL cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (watching) fprintf(log(), "memcpy\t%zu\t%d\n", bytes, kind);
  if (kind == cudaMemcpyDeviceToHost) {
    memset(to, 0, bytes);  // what nobody computed must not decide how much memory is asked for
  } else if (bytes <= kCopied) {
    memcpy(to, from, bytes);
  }
  return cudaSuccess;
}
CALL cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
CALL cudaError_t cudaMemcpyPeerAsync(void*, int, const void*, int, size_t, cudaStream_t) { return cudaSuccess; }
CALL cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
CALL cudaError_t cudaGetSymbolAddress(void** at, const void*) { return *at = take(4096), cudaSuccess; }
CALL cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (watching) fprintf(log(), "memset\t%zu\n", bytes);
  if (bytes <= kCopied) memset(to, value, bytes);
  return cudaSuccess;
}
CALL cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) { return cudaMemset(to, value, bytes); }
CALL cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->type = cudaMemoryTypeDevice;
  return cudaSuccess;
}
CALL cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
CALL cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
CALL cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

// Kernels, streams, events, graphs: all is over at once.
CALL cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024, a->numRegs = 32, a->binaryVersion = a->ptxVersion = 90;
  return cudaSuccess;
}
CALL cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
CALL cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void*, int, size_t) {
  return *count = 4, cudaSuccess;
}
CALL cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t, unsigned) {
  return *count = 4, cudaSuccess;
}
CALL cudaError_t cudaStreamCreate(cudaStream_t* stream) { return make(stream), cudaSuccess; }
CALL cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return make(stream), cudaSuccess; }
CALL cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
CALL cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) { return *priority = 0, cudaSuccess; }
CALL cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
CALL cudaError_t cudaStreamSynchronize(cudaStream_t) {
  if (watching) fprintf(log(), "sync\tstream\n");
  return cudaSuccess;
}
CALL cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
CALL cudaError_t cudaStreamAddCallback(cudaStream_t, cudaStreamCallback_t, void*, unsigned) { return cudaSuccess; }
CALL cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t, void*) { return cudaSuccess; }
CALL cudaError_t cudaEventCreate(cudaEvent_t* event) { return make(event), cudaSuccess; }
CALL cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return make(event), cudaSuccess; }
CALL cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
CALL cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return *milliseconds = 1, cudaSuccess;
}
CALL cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
CALL cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
CALL cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned) { return cudaSuccess; }
CALL cudaError_t cudaEventSynchronize(cudaEvent_t) {
  if (watching) fprintf(log(), "sync\tevent\n");
  return cudaSuccess;
}
CALL cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
CALL cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
CALL cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                          cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData**,
                                          size_t* count) {
  if (id) *id = 1;
  if (graph) *graph = (cudaGraph_t)1;
  if (nodes) *nodes = nullptr;
  if (count) *count = 0;
  return cudaStreamIsCapturing(stream, status);
}
CALL cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return capturing = true, cudaSuccess; }
CALL cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  capturing = false;
  return make(graph), cudaSuccess;
}
CALL cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) { return *count = 1, cudaSuccess; }
CALL cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t* count) {
  return *count = 0, cudaSuccess;
}
CALL cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t, unsigned long long) {
  return make(exec), cudaSuccess;
}
CALL cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
  if (watching) fprintf(log(), "graph\n");
  return cudaSuccess;
}
CALL cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
CALL cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }

// Functions of the driver that PyTorch asks for by name.
static int done() { return 0; }
static int context_state(int, unsigned* flags, int* active) { return *flags = 0, *active = 1, 0; }
static int current_context(void** context) { return *context = (void*)1, 0; }
CALL cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long,
                                                  cudaDriverEntryPointQueryResult* result) {
  *found = strstr(name, "PrimaryCtxGetState") ? (void*)context_state
           : strstr(name, "CtxGetCurrent")    ? (void*)current_context
                                              : (void*)done;
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// Products.
using Handle = cublasHandle_t;
using Operation = cublasOperation_t;
CALL cublasStatus_t cublasCreate_v2(Handle* handle) { return make(handle), CUBLAS_STATUS_SUCCESS; }
CALL cublasStatus_t cublasDestroy_v2(Handle) { return CUBLAS_STATUS_SUCCESS; }
CALL cublasStatus_t cublasSetStream_v2(Handle, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }
CALL cublasStatus_t cublasSetWorkspace_v2(Handle, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
static cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
CALL cublasStatus_t cublasSetMathMode(Handle, cublasMath_t mode) { return math_mode = mode, CUBLAS_STATUS_SUCCESS; }
CALL cublasStatus_t cublasGetMathMode(Handle, cublasMath_t* mode) { return *mode = math_mode, CUBLAS_STATUS_SUCCESS; }
CALL cublasStatus_t cublasGemmEx(Handle, Operation, Operation, int m, int n, int k, const void*, const void*,
                                 cudaDataType a, int, const void*, cudaDataType, int, const void*, void*,
                                 cudaDataType c, int, cublasComputeType_t, cublasGemmAlgo_t) {
  return multiply(m, n, k, 1, bytes_of(a), bytes_of(c));
}
CALL cublasStatus_t cublasGemmStridedBatchedEx(Handle, Operation, Operation, int m, int n, int k, const void*,
                                               const void*, cudaDataType a, int, long long, const void*, cudaDataType,
                                               int, long long, const void*, void*, cudaDataType c, int, long long,
                                               int batch, cublasComputeType_t, cublasGemmAlgo_t) {
  return multiply(m, n, k, batch, bytes_of(a), bytes_of(c));
}
// Products of numbers of one kind.
#define PRODUCTS(letter, number)                                                                                     \
  CALL cublasStatus_t cublas##letter##gemm_v2(Handle, Operation, Operation, int m, int n, int k, const number*,       \
                                              const number*, int, const number*, int, const number*, number*, int) {  \
    return multiply(m, n, k, 1, sizeof(number), sizeof(number));                                                      \
  }                                                                                                                   \
  CALL cublasStatus_t cublas##letter##gemv_v2(Handle, Operation, int m, int n, const number*, const number*, int,     \
                                              const number*, int, const number*, number*, int) {                      \
    return multiply(m, 1, n, 1, sizeof(number), sizeof(number));                                                      \
  }                                                                                                                   \
  CALL cublasStatus_t cublas##letter##gemmStridedBatched(                                                             \
      Handle, Operation, Operation, int m, int n, int k, const number*, const number*, int, long long, const number*, \
      int, long long, const number*, number*, int, long long, int batch) {                                            \
    return multiply(m, n, k, batch, sizeof(number), sizeof(number));                                                  \
  }
PRODUCTS(S, float)
PRODUCTS(D, double)
CALL size_t cublasLtGetVersion() { return 130100; }
CALL cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return make(handle), CUBLAS_STATUS_SUCCESS; }
CALL cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* what, cublasComputeType_t, cudaDataType_t) {
  return make(what), CUBLAS_STATUS_SUCCESS;
}
CALL cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) { return CUBLAS_STATUS_SUCCESS; }
CALL cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t what, cublasLtMatmulDescAttributes_t name,
                                                   const void* value, size_t) {
  if (name == CUBLASLT_MATMUL_DESC_TRANSA) *(int*)what = *(const int*)value;
  return CUBLAS_STATUS_SUCCESS;
}
CALL cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) { return make(p), CUBLAS_STATUS_SUCCESS; }
CALL cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) { return CUBLAS_STATUS_SUCCESS; }
CALL cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                         cublasLtMatmulPreferenceAttributes_t, const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
CALL cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows,
                                               uint64_t columns, int64_t) {
  *made = (cublasLtMatrixLayout_t) new Layout{type, rows, columns, 1};
  return CUBLAS_STATUS_SUCCESS;
}
CALL cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete (Layout*)layout;
  return CUBLAS_STATUS_SUCCESS;
}
CALL cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name,
                                                     const void* value, size_t) {
  if (name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) ((Layout*)layout)->batch = *(const int*)value;
  return CUBLAS_STATUS_SUCCESS;
}
CALL cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                                   cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                   cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                                   cublasLtMatmulHeuristicResult_t* results, int* count) {
  *count = 1;
  results->state = CUBLAS_STATUS_SUCCESS;
  results->workspaceSize = 0;
  return CUBLAS_STATUS_SUCCESS;
}
CALL cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t what, const void*, const void*,
                                   cublasLtMatrixLayout_t left, const void*, cublasLtMatrixLayout_t, const void*,
                                   const void*, cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t result,
                                   const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t) {
  auto a = (Layout*)left, c = (Layout*)result;
  bool turned = *(int*)what != CUBLAS_OP_N;
  return multiply(c->rows, c->columns, turned ? a->rows : a->columns, c->batch, bytes_of(a->type), bytes_of(c->type));
}
