// The functions of cuDNN for which doing nothing is not enough.
#include "fcu.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
size_t cudnnGetVersion() { return 92000; }
size_t cudnnGetCudartVersion() { return 13000; }
void cudnnGetLastErrorString(char* out, size_t size) { snprintf(out, size, "an error of the stand-in cuDNN"); }
int cudnnGetStream(void** handle, void** out) {
    *out = *handle;
    return 0;
}
int cudnnGetProperty(int which, int* out) {
    *out = which == 0 ? 9 : which == 1 ? 20 : 0;
    return 0;
}
// The graph API: every graph has one engine, which needs no workspace.
struct Descriptor {
    int type;
    long attributes[64];
};
int cudnnBackendCreateDescriptor(int type, Descriptor** out) {
    *out = (Descriptor*)calloc(1, sizeof(Descriptor));
    (*out)->type = type;
    return 0;
}
int cudnnBackendDestroyDescriptor(Descriptor* descriptor) {
    free(descriptor);
    return 0;
}
int cudnnBackendSetAttribute(Descriptor*, int, int, long, const void*) { return 0; }
int cudnnBackendFinalize(Descriptor*) { return 0; }
int cudnnBackendGetAttribute(Descriptor* d, int name, int type, long asked, long* count, void* out) {
    if (getenv("FAKECUDA_VERBOSE"))
        fprintf(stderr, "fakecuda: cudnnBackendGetAttribute: descriptor %d, attribute %d, type %d, %ld asked, out %p\n",
                d->type, name, type, asked, out);
    const int results = 202, int64 = 3, knob = 9,
              int32 = 23; // CUDNN_ATTR_ENGINEHEUR_RESULTS; of the types only these are plain values
    if (count) *count = name == results || asked == 1; // lists of notes and knobs are empty
    if (out && asked == 1 && (type == int64 || type == knob || type == int32)) memset(out, 0, type == int64 ? 8 : 4);
    return 0;
}
int cudnnBackendExecute(void** handle, Descriptor*, Descriptor*) {
    fcu_library_kernel("cudnn_graph_kernel", (cudaStream_t)*handle);
    return 0;
}

// Recurrent networks: PyTorch lays its parameters out as it is told here. All matrices lie before all biases.
struct Rnn {
    int gates, hidden, inputs, projection, layers, directions, biases, element;
};
struct Matrix { // in a tensor descriptor
    int rows, columns;
};
static size_t matrix(const Rnn* rnn, int layer, int gate, Matrix* shape) {
    const int outputs = rnn->projection ? rnn->projection : rnn->hidden;
    const bool recurrent = gate >= rnn->gates, projects = gate == 2 * rnn->gates;
    const int from_below = layer < rnn->directions ? rnn->inputs : outputs * rnn->directions;
    *shape = projects ? Matrix{outputs, rnn->hidden} : Matrix{rnn->hidden, recurrent ? outputs : from_below};
    return (size_t)shape->rows * shape->columns;
}
static int matrices(const Rnn* rnn) { return 2 * rnn->gates + (rnn->projection != 0); }
// Elements before one gate's matrix, or before its bias.
static size_t elements_before(const Rnn* rnn, int layer, int gate, bool bias) {
    Matrix shape;
    size_t total = 0;
    for (int l = 0; l < rnn->layers * rnn->directions; l++)
        for (int g = 0; g < matrices(rnn); g++)
            if (bias || l < layer || (l == layer && g < gate)) total += matrix(rnn, l, g, &shape);
    if (bias) total += (size_t)(layer * rnn->gates * rnn->biases + gate) * rnn->hidden;
    return total;
}
int cudnnSetRNNDescriptor_v8(Rnn* rnn, int, int cell, int bias, int direction, int, int type, int, int, int inputs,
                             int hidden, int projection, int layers, void*, unsigned) {
    const int gates[] = {1, 1, 4, 3}, biases[] = {0, 1, 2, 1}; // ReLU, tanh, LSTM, GRU; none, one, two, one
    const int element = type == 1 ? 8 : type == 0 ? 4 : 2;
    *rnn = {gates[cell], hidden,        inputs,       projection == hidden ? 0 : projection,
            layers,      1 + direction, biases[bias], element};
    return 0;
}
int cudnnGetRNNWeightSpaceSize(void*, const Rnn* rnn, size_t* bytes) {
    *bytes = elements_before(rnn, rnn->layers * rnn->directions, 0, true) * rnn->element;
    return 0;
}
int cudnnGetRNNWeightParams(void*, const Rnn* rnn, int layer, size_t, char* space, int gate, Matrix* m,
                            void** matrix_at, Matrix* b, void** bias_at) {
    const bool has_bias = gate < rnn->gates * rnn->biases;
    if (m) matrix(rnn, layer, gate, m);
    if (b) *b = {rnn->hidden, 1};
    if (matrix_at) *matrix_at = space + elements_before(rnn, layer, gate, false) * rnn->element;
    if (bias_at) *bias_at = has_bias ? space + elements_before(rnn, layer, gate, true) * rnn->element : nullptr;
    return 0;
}
int cudnnGetTensorNdDescriptor(const Matrix* m, int, int* type, int* count, int sizes[], int strides[]) {
    *type = 0, *count = 3;
    sizes[0] = 1, sizes[1] = m->rows, sizes[2] = m->columns;
    strides[0] = m->rows * m->columns, strides[1] = m->columns, strides[2] = 1;
    return 0;
}
}
