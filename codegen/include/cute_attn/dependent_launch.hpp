// Programmatic dependent launch (sm_90 on): a kernel that was launched with that attribute may
// start while its predecessor in the stream still runs.
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

// The successor may take free resources of the SMs from now on.
CUTE_DEVICE void let_successor_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Returns when the predecessor has ended and its writes are visible, also to threads that meet the
// caller at a barrier afterwards. No block ends before one of its threads has called it, so that
// this kernel never ends before its predecessor, for which its own successor does not wait.
CUTE_DEVICE void wait_for_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace cute_attn
