// The launchers of giou_kernels.cu for ctypes. kernels_for_host.cu is that file with the registers of asm renamed.
#include "kernels_for_host.cu"

using namespace giou::cuda;

extern "C" {

void emulate(int processors, bool backwards) {
  emulated::processors = processors;
  emulated::backwards = backwards;
}

bool is_capturing_c(bool capturing) {
  emulated::capturing = capturing;
  bool seen = false;
  is_capturing({0, nullptr}, &seen);
  emulated::capturing = false;
  return seen;
}

// A stream is but a number here.
void* cached_workspace_c(int device, int64_t stream) {
  void* workspace = nullptr;
  return cached_workspace({device, reinterpret_cast<void*>(stream)}, &workspace) ? nullptr : workspace;
}

int64_t launches() { return emulated::launches; }
int64_t workspace_bytes() { return kWorkspaceBytes; }

const char* loss_forward_c(const void* p, const void* t, int p_type, int t_type, int64_t count, int64_t iterations, void* workspace,
                           void* loss, void* valid) {
  return loss_forward({0, nullptr}, {p, t, static_cast<giou::DType>(p_type), static_cast<giou::DType>(t_type), count, iterations},
                      workspace, loss, valid);
}

const char* loss_backward_c(const void* p, const void* t, int p_type, int t_type, int64_t count, int64_t iterations,
                            const void* grad, const void* valid, void* gradient) {
  return loss_backward({0, nullptr}, {p, t, static_cast<giou::DType>(p_type), static_cast<giou::DType>(t_type), count, iterations},
                       grad, valid, gradient);
}

const char* box_forward_c(const void* p, const void* t, int64_t count, int64_t iterations, bool conditional, float* out, float* valid) {
  return box_forward({0, nullptr}, {p, t, giou::DType::kFloat32, giou::DType::kFloat32, count, iterations}, conditional, out, valid);
}

const char* box_backward_c(const void* p, const void* t, int64_t count, int64_t iterations, bool conditional, const float* grad,
                           float* gradient) {
  return box_backward({0, nullptr}, {p, t, giou::DType::kFloat32, giou::DType::kFloat32, count, iterations}, conditional, grad,
                      gradient);
}
}
