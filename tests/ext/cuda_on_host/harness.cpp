// The launchers of giou_kernels.cu for ctypes. kernels_for_host.cu is that file with the registers of asm renamed.
#include "kernels_for_host.cu"

using namespace giou::cuda;

extern "C" {

void emulate(int processors, bool backwards) {
  emulated::processors = processors;
  emulated::backwards = backwards;
}

// A stream is but a number here, and so is a graph being recorded; 0 is none.
int workspace_slot_c(int device, int64_t stream, int64_t recording) {
  int slot = -2;
  emulated::recording = static_cast<unsigned long long>(recording);
  const char* error = workspace_slot({device, reinterpret_cast<void*>(stream)}, &slot);
  emulated::recording = 0;
  return error ? -2 : slot;
}

// Whether all tickets, and that of `own`, are 0.
bool tickets_are_back(const void* own) {
  for (const Workspace& workspace : workspaces)
    if (workspace.ticket != 0) return false;
  return own == nullptr || static_cast<const Workspace*>(own)->ticket == 0;
}

int64_t launches() { return emulated::launches; }
int64_t workspace_bytes() { return kWorkspaceBytes; }
int workspaces_there_are() { return kWorkspaces; }

const char* loss_forward_c(const void* p, const void* t, int p_type, int t_type, int64_t count, int64_t iterations, int slot,
                           void* own, void* loss, void* valid) {
  return loss_forward({0, nullptr}, {p, t, static_cast<giou::DType>(p_type), static_cast<giou::DType>(t_type), count, iterations},
                      {slot, own}, loss, valid);
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
