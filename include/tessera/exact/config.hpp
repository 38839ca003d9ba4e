#pragma once
// What depends on the compiler and the instruction set, in one place: no other header of the core
// asks for either, except by TESSERA_NATIVE_LANES.
//
// A floating-point operation that must round once to nearest even is one machine instruction here,
// written as asm. A barrier after a plain `a * b` would stop contraction and reassociation, but
// -ffast-math may still rewrite the operation itself (x - x to 0, x + 0 to x, a / b to a * rcp(b)),
// and a compiler may swap the operands, which changes the payload of a NaN. The asm is not
// volatile, so that a repeated or loop-invariant operation is still removed or hoisted.

/// Marks a function for host and device when CUDA compiles it; nothing otherwise.
#if defined(__CUDACC__)
#define TESSERA_HD __host__ __device__
#else
#define TESSERA_HD
#endif

/// Before a host-device template whose instantiation decides whether it calls host-only lanes.
#if defined(__NVCC__)
#define TESSERA_EXEC_CHECK_DISABLE _Pragma("nv_exec_check_disable")
#else
#define TESSERA_EXEC_CHECK_DISABLE
#endif

/// Before a short loop of constant length: g++ -O2 keeps the loop, and its arrays out of registers.
#if defined(__NVCC__)
#define TESSERA_UNROLL
#elif defined(__clang__)
#define TESSERA_UNROLL _Pragma("unroll")
#else
#define TESSERA_UNROLL _Pragma("GCC unroll 8")
#endif

/// TESSERA_ISA is the inline namespace of everything whose machine code depends on the instruction
/// set, so that two translation units with different -m flags define different entities.
/// TESSERA_NATIVE_LANES is how many floats the widest vector holds.
#if defined(__NVCC__) && defined(__AVX__)
#define TESSERA_ISA isa_nvcc_avx
#define TESSERA_NATIVE_LANES 4
#elif defined(__NVCC__) && defined(__SSE2__)
#define TESSERA_ISA isa_nvcc_sse2
#define TESSERA_NATIVE_LANES 4
#elif defined(__AVX512F__)
#define TESSERA_ISA isa_avx512f
#define TESSERA_NATIVE_LANES 16
#elif defined(__AVX2__)
#define TESSERA_ISA isa_avx2
#define TESSERA_NATIVE_LANES 8
#elif defined(__AVX__)
#define TESSERA_ISA isa_avx
#define TESSERA_NATIVE_LANES 8
#elif defined(__SSE2__)
#define TESSERA_ISA isa_sse2
#define TESSERA_NATIVE_LANES 4
#elif defined(__aarch64__)
#define TESSERA_ISA isa_aarch64
#define TESSERA_NATIVE_LANES 1
#else
#define TESSERA_ISA isa_portable
#define TESSERA_NATIVE_LANES 1
#endif

// How a class keeps a vector. nvcc refuses one in a host-device template, even where that is
// instantiated for the host: there it is two doubles, never used as such, which g++ keeps in a
// register where an array or two integers go through memory. That is for 16 bytes only.
#if defined(__NVCC__)
#define TESSERA_STORED(Vector) ::tessera::detail::TwoDoubles
namespace tessera::detail {
struct alignas(16) TwoDoubles {
  double low, high;
};
}  // namespace tessera::detail
#else
#define TESSERA_STORED(Vector) Vector
#endif

// Operand order in both assembler dialects (-masm=att, -masm=intel): result, first, second.
#define TESSERA_ASM_2(op) "{" op " %1, %0|" op " %0, %1}"
#define TESSERA_ASM_3(op) "{" op " %2, %1, %0|" op " %0, %1, %2}"
#define TESSERA_ASM_SQRT_3(op) "{" op " %1, %1, %0|" op " %0, %1, %1}"

// TESSERA_F32_OP(add, +, r, a, b): r = a + b on one float. `op` is add, sub, mul or div. F64 is the
// same on double. F64_BASE is F64 in the base instruction set, the same code in every translation
// unit. F32_SQRT(r, a) and so on are the square roots.
#if defined(__CUDA_ARCH__)
// PTX, because -use_fast_math gives .ftz to __fmul_rn and the like, and leaves this alone.
#define TESSERA_F32_OP(op, symbol, r, a, b) \
  asm(#op ".rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b))
#define TESSERA_F32_SQRT(r, a) asm("sqrt.rn.f32 %0, %1;" : "=f"(r) : "f"(a))
#define TESSERA_F64_OP(op, symbol, r, a, b) \
  asm(#op ".rn.f64 %0, %1, %2;" : "=d"(r) : "d"(a), "d"(b))
#define TESSERA_F64_SQRT(r, a) asm("sqrt.rn.f64 %0, %1;" : "=d"(r) : "d"(a))
#define TESSERA_F64_LOAD_F32(r, p) asm("cvt.f64.f32 %0, %1;" : "=d"(r) : "f"(*(p)))
#define TESSERA_F64_BASE_OP TESSERA_F64_OP
#define TESSERA_F64_BASE_SQRT TESSERA_F64_SQRT

#elif defined(__SSE2__)
#define TESSERA_SSE_OP(name, r, a, b) \
  (r) = (a);                          \
  asm(TESSERA_ASM_2(name) : "+x"(r) : "x"(b))
#define TESSERA_F64_BASE_OP(op, symbol, r, a, b) TESSERA_SSE_OP(#op "sd", r, a, b)
#define TESSERA_F64_BASE_SQRT(r, a) asm(TESSERA_ASM_2("sqrtsd") : "=x"(r) : "x"(a))
#if defined(__AVX__)  // VEX forms: a legacy instruction among 256-bit ones stalls
#define TESSERA_VEX_OP(name, r, a, b) asm(TESSERA_ASM_3(name) : "=x"(r) : "x"(a), "x"(b))
#define TESSERA_F32_OP(op, symbol, r, a, b) TESSERA_VEX_OP("v" #op "ss", r, a, b)
#define TESSERA_F32_SQRT(r, a) asm(TESSERA_ASM_SQRT_3("vsqrtss") : "=x"(r) : "x"(a))
#define TESSERA_F64_OP(op, symbol, r, a, b) TESSERA_VEX_OP("v" #op "sd", r, a, b)
#define TESSERA_F64_LOAD_F32(r, p) \
  asm("{vcvtss2sd %1, %0, %0|vcvtss2sd %0, %0, %1}" : "=x"(r) : "x"(*(p)), "0"(0.0))
#else
#define TESSERA_F32_OP(op, symbol, r, a, b) TESSERA_SSE_OP(#op "ss", r, a, b)
#define TESSERA_F32_SQRT(r, a) asm(TESSERA_ASM_2("sqrtss") : "=x"(r) : "x"(a))
#define TESSERA_F64_OP TESSERA_F64_BASE_OP
#define TESSERA_F64_LOAD_F32(r, p) asm(TESSERA_ASM_2("cvtss2sd") : "=x"(r) : "x"(*(p)))
#endif

#elif defined(__aarch64__)
#define TESSERA_F32_OP(op, symbol, r, a, b) asm("f" #op " %s0, %s1, %s2" : "=w"(r) : "w"(a), "w"(b))
#define TESSERA_F32_SQRT(r, a) asm("fsqrt %s0, %s1" : "=w"(r) : "w"(a))
#define TESSERA_F64_OP(op, symbol, r, a, b) asm("f" #op " %d0, %d1, %d2" : "=w"(r) : "w"(a), "w"(b))
#define TESSERA_F64_SQRT(r, a) asm("fsqrt %d0, %d1" : "=w"(r) : "w"(a))
#define TESSERA_F64_LOAD_F32(r, p) asm("fcvt %d0, %s1" : "=w"(r) : "w"(*(p)))
#define TESSERA_F64_BASE_OP TESSERA_F64_OP
#define TESSERA_F64_BASE_SQRT TESSERA_F64_SQRT

#else
// No instructions known: operands and result pass through memory out of the optimiser's sight. That
// stops contraction, reassociation and excess precision, but not a division by estimates.
#if defined(__FAST_MATH__) || (defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0)
#error "tessera: this architecture needs float evaluated as float, without -ffast-math"
#endif
#define TESSERA_HIDDEN_OP(T, symbol, r, a, b) \
  do {                                        \
    T hidden_a = (a);                         \
    T hidden_b = (b);                         \
    asm("" : "+m"(hidden_a));                 \
    asm("" : "+m"(hidden_b));                 \
    (r) = hidden_a symbol hidden_b;           \
    asm("" : "+m"(r));                        \
  } while (false)
#define TESSERA_F32_OP(op, symbol, r, a, b) TESSERA_HIDDEN_OP(float, symbol, r, a, b)
#define TESSERA_F32_SQRT(r, a) (r) = __builtin_sqrtf(a)
#define TESSERA_F64_BASE_OP(op, symbol, r, a, b) TESSERA_HIDDEN_OP(double, symbol, r, a, b)
#define TESSERA_F64_BASE_SQRT(r, a) (r) = __builtin_sqrt(a)
#define TESSERA_F64_OP TESSERA_F64_BASE_OP
#define TESSERA_F64_LOAD_F32(r, p) (r) = *(p)
#endif

// The same on vectors: PS is float, PD is double, of 16, 32 or 64 bytes. x86 only, host only;
// CUDA's device pass reads the functions that hold them, and generates no code.
#if defined(__CUDA_ARCH__)
#define TESSERA_PS_OP(op, r, a, b) ((void)(b), (r) = (a))
#define TESSERA_PD_OP TESSERA_PS_OP
#define TESSERA_PS_SQRT(r, a) ((r) = (a))
#define TESSERA_PD_LOAD_F32(r, p) ((void)(p), (r) = decltype(r){})
#elif defined(__AVX__)
#define TESSERA_PS_OP(op, r, a, b) TESSERA_VEX_OP("v" #op "ps", r, a, b)
#define TESSERA_PD_OP(op, r, a, b) TESSERA_VEX_OP("v" #op "pd", r, a, b)
#define TESSERA_PS_SQRT(r, a) asm(TESSERA_ASM_2("vsqrtps") : "=x"(r) : "x"(a))
#define TESSERA_PD_LOAD_F32(r, p) asm(TESSERA_ASM_2("vcvtps2pd") : "=x"(r) : "m"(*(p)))
#elif defined(__SSE2__)
#define TESSERA_PS_OP(op, r, a, b) TESSERA_SSE_OP(#op "ps", r, a, b)
#define TESSERA_PD_OP(op, r, a, b) TESSERA_SSE_OP(#op "pd", r, a, b)
#define TESSERA_PS_SQRT(r, a) asm(TESSERA_ASM_2("sqrtps") : "=x"(r) : "x"(a))
#define TESSERA_PD_LOAD_F32(r, p) asm(TESSERA_ASM_2("cvtps2pd") : "=x"(r) : "m"(*(p)))
#endif

// The floating-point control register: its type, the value that rounds to nearest even, keeps
// denormals and masks traps, and how to read and write it. "memory", so that loads, stores and with
// them the arithmetic in between stay on their side.
#if defined(__CUDA_ARCH__) || !(defined(__SSE2__) || defined(__aarch64__))
#define TESSERA_CONTROL_TYPE std::uint32_t
#define TESSERA_CONTROL_STRICT 0
#define TESSERA_CONTROL_READ(r) ((r) = 0)
#define TESSERA_CONTROL_WRITE(r) ((void)(r))
#define TESSERA_PIN(value) ((void)(value))
#elif defined(__SSE2__)
#define TESSERA_CONTROL_TYPE std::uint32_t
#define TESSERA_CONTROL_STRICT 0x1f80  // MXCSR: all exceptions masked; no FTZ, DAZ or rounding bits
#define TESSERA_CONTROL_READ(r) asm volatile("stmxcsr %0" : "=m"(r) : : "memory")
#define TESSERA_CONTROL_WRITE(r) asm volatile("ldmxcsr %0" : : "m"(r) : "memory")
#define TESSERA_PIN(value) asm volatile("" : "+x"(value) : : "memory")
#else
#define TESSERA_CONTROL_TYPE std::uint64_t
#define TESSERA_CONTROL_STRICT 0  // FPCR
#define TESSERA_CONTROL_READ(r) asm volatile("mrs %0, fpcr" : "=r"(r) : : "memory")
#define TESSERA_CONTROL_WRITE(r) asm volatile("msr fpcr, %0" : : "r"(r) : "memory")
#define TESSERA_PIN(value) asm volatile("" : "+w"(value) : : "memory")
#endif

namespace tessera {
inline namespace TESSERA_ISA {
/// Names the translation unit's instruction set. A template in another header that calls lanes can
/// take it as a defaulted parameter, `template <class F, class = NativeIsa>`, to be a different
/// function in each.
struct NativeIsa {};
}  // namespace TESSERA_ISA
}  // namespace tessera
