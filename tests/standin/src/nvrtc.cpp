// The functions of NVRTC for which doing nothing is not enough.
#include "fcu.h"

extern "C" {
int nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return 0;
}
int nvrtcGetLoweredName(void*, const char* name, const char** out) {
    *out = name;
    return 0;
}
}
