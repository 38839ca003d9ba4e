// Precision: the types of gathered parameters and gradients, and of the state behind them.
#pragma once

#include <concepts>
#include <type_traits>

#include "tessera/exact/bf16.hpp"
#include "tessera/policy/description.hpp"

namespace tessera {

/// A precision policy is a type with `static constexpr PrecisionDescription describe()` and
/// `template <class E> using gradient_element`, the element type of the gradient buffer of a tensor
/// with elements E.
template <class P>
concept PrecisionPolicy = requires {
  { P::describe() } -> std::same_as<PrecisionDescription>;
  typename P::template gradient_element<float>;
};

/// Everything in fp32; the parameters are the master weights.
struct Fp32 {
  static constexpr PrecisionDescription describe() { return {.name = "fp32"}; }
  template <class E>
  using gradient_element = E;
};

/// bf16 parameters and gradients, fp32 master weights, sums over ranks in fp32. Unreduced
/// accumulation over micro-steps is in the gradient's type: see WithGradients for fp32.
struct Bf16 {
  static constexpr PrecisionDescription describe() {
    return {.name = "bf16", .parameter = DType::bf16, .gradient = DType::bf16};
  }
  template <class E>
  using gradient_element = E;
};

namespace detail {

template <class P, class G, class E>
struct GradientElement {
  using type = std::conditional_t<ElementTraits<E>::dtype == P::describe().parameter, G,
                                  typename P::template gradient_element<E>>;
};
// A tensor whose element type is known at run time only: so is its gradient's.
template <class P, class G>
struct GradientElement<P, G, void> {
  using type = void;
};

}  // namespace detail

/// Policy `P` with gradient buffers, accumulation and reduction in type `G` (float or bf16).
template <PrecisionPolicy P, class G>
struct WithGradients {
  static_assert(std::is_same_v<G, float> || std::is_same_v<G, bf16>,
                "tessera: WithGradients takes float or tessera::bf16 as the gradients' type");
  static_assert(
      std::is_same_v<G, bf16> || P::describe().reduced == DType::f32,
      "tessera: float gradients of a policy whose reduced gradients are bf16: the sum would "
      "be less than what is summed");
  static constexpr PrecisionDescription describe() {
    PrecisionDescription description = P::describe();
    description.gradient = ElementTraits<G>::dtype;
    return description;
  }
  template <class E>
  using gradient_element = typename detail::GradientElement<P, G, E>::type;
};

/// Policy `P`, of bf16 gradients, with the reduced ones kept in type `R` (float or bf16). Sums over
/// ranks are fp32 in rank order all the same, and rounded to nearest when they are stored; so is
/// each addition of a further micro-step. At one rank gradients of this type need no reduction: the
/// buffers that leases hand out are the reduced gradients themselves.
template <PrecisionPolicy P, class R>
struct WithReduced {
  static_assert(std::is_same_v<R, float> || std::is_same_v<R, bf16>,
                "tessera: WithReduced takes float or tessera::bf16 as the reduced gradients' type");
  static_assert(
      std::is_same_v<R, float> || P::describe().gradient == DType::bf16,
      "tessera: WithReduced<P, bf16> needs a policy with bf16 gradients: the sum would be "
      "less than what is summed");
  static constexpr PrecisionDescription describe() {
    PrecisionDescription description = P::describe();
    description.reduced = ElementTraits<R>::dtype;
    return description;
  }
  template <class E>
  using gradient_element = typename P::template gradient_element<E>;
};

/// Policy `P`, of bf16 parameters, with the fp32 master in two halves: the parameter itself, which
/// is then the master rounded to nearest with ties away from zero, and 16 bits beside it. Exact,
/// and 2 bytes an element less.
template <PrecisionPolicy P = Bf16>
struct SplitMaster {
  static_assert(P::describe().parameter == DType::bf16,
                "tessera: SplitMaster needs a policy with bf16 parameters: fp32 ones are their own "
                "master");
  static constexpr PrecisionDescription describe() {
    PrecisionDescription description = P::describe();
    description.master = Master::split;
    return description;
  }
  template <class E>
  using gradient_element = typename P::template gradient_element<E>;
};

/// bf16 parameters and gradients, and no master: the parameters are updated in fp32 arithmetic and
/// rounded stochastically, so that what one update loses many keep on average. Reduced gradients
/// are in type `R` (float or bf16). The random bits are a function of Options::rounding_seed, the
/// tensor, the element's place in it and the number of updates.
template <class R = bf16>
struct PureBf16 {
  static constexpr PrecisionDescription describe() {
    PrecisionDescription description = WithReduced<Bf16, R>::describe();
    description.name = "pure bf16";
    description.master = Master::none;
    return description;
  }
  template <class E>
  using gradient_element = E;
};

/// Policy `P` with moments in type `M` (float or bf16), those of f32 tensors too. bf16 ones are
/// rounded stochastically: to nearest, a slow average would stand still.
template <PrecisionPolicy P, class M>
struct WithMoments {
  static_assert(std::is_same_v<M, float> || std::is_same_v<M, bf16>,
                "tessera: WithMoments takes float or tessera::bf16 as the moments' type");
  static constexpr PrecisionDescription describe() {
    PrecisionDescription description = P::describe();
    description.moments = ElementTraits<M>::dtype;
    return description;
  }
  template <class E>
  using gradient_element = typename P::template gradient_element<E>;
};

static_assert(PrecisionPolicy<Fp32> && PrecisionPolicy<Bf16> &&
              PrecisionPolicy<WithGradients<Bf16, float>> &&
              PrecisionPolicy<WithReduced<Bf16, bf16>> && PrecisionPolicy<SplitMaster<>> &&
              PrecisionPolicy<WithMoments<PureBf16<>, bf16>>);

}  // namespace tessera
