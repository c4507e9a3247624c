// SPDX-License-Identifier: Apache-2.0
// Atomic operations, for the types for which CUDA has them. Threads take turns, so that nothing can
// come between the load and the store.
#pragma once

#define DLSIM_EMULATED_ATOMIC(Name, Type, result) \
  inline Type Name(Type* address, Type operand) { \
    const Type old = *address;                    \
    *address = static_cast<Type>(result);         \
    return old;                                   \
  }
#define DLSIM_EMULATED_INTEGER_ATOMICS(Type)                            \
  DLSIM_EMULATED_ATOMIC(atomicAdd, Type, old + operand)                 \
  DLSIM_EMULATED_ATOMIC(atomicMin, Type, operand < old ? operand : old) \
  DLSIM_EMULATED_ATOMIC(atomicMax, Type, operand > old ? operand : old) \
  DLSIM_EMULATED_ATOMIC(atomicAnd, Type, old& operand)                  \
  DLSIM_EMULATED_ATOMIC(atomicOr, Type, old | operand)                  \
  DLSIM_EMULATED_ATOMIC(atomicXor, Type, old ^ operand)                 \
  DLSIM_EMULATED_ATOMIC(atomicExch, Type, operand)                      \
  inline Type atomicCAS(Type* address, Type compare, Type operand) {    \
    const Type old = *address;                                          \
    if (old == compare) *address = operand;                             \
    return old;                                                         \
  }

DLSIM_EMULATED_INTEGER_ATOMICS(int)
DLSIM_EMULATED_INTEGER_ATOMICS(unsigned)
DLSIM_EMULATED_INTEGER_ATOMICS(unsigned long long)
DLSIM_EMULATED_ATOMIC(atomicSub, int, old - operand)
DLSIM_EMULATED_ATOMIC(atomicSub, unsigned, old - operand)
#undef DLSIM_EMULATED_INTEGER_ATOMICS
#undef DLSIM_EMULATED_ATOMIC
