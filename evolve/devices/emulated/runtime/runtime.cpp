// The emulator's runtime, compiled once per compiler and linked to every kernel.
#include "block.h"
#include "collectives.h"
#include "launch.h"
