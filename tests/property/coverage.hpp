#pragma once
// Which kinds of cases came up, and how often.

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "property/cases.hpp"

namespace property {

class Coverage {
 public:
  void add(const Case& c) {
    ++cases_;
    bool zero = false, one = false, frozen = false, odd = false, few = false, copied = false;
    bool tied_within = false, tied_across = false, mixed = false, outer = false, empty = false;
    for (const TensorSpec& tensor : c.tensors) {
      const std::uint64_t n = tensor.elements();
      zero |= n == 0;
      one |= n == 1;
      frozen |= !tensor.trainable;
      odd |= !tensor.is_float();
      few |= n > 0 && n < static_cast<std::uint64_t>(c.world);
      copied |= tensor.form == Form::vector;
    }
    for (std::size_t u = 0; u < c.units.size(); ++u) {
      bool f32 = false, bf16 = false;
      std::vector<int> seen;
      for (int t : c.units[u].tensors) {
        const TensorSpec& tensor = c.tensors[static_cast<std::size_t>(t)];
        f32 |= tensor.trainable && tensor.type == Type::f32;
        bf16 |= tensor.trainable && tensor.type == Type::bf16;
        tied_within |= std::find(seen.begin(), seen.end(), t) != seen.end();
        tied_across |= c.owner(t) != static_cast<int>(u);
        seen.push_back(t);
      }
      mixed |= f32 && bf16;
      empty |= seen.empty();
      outer |= c.units[u].options.outer;
    }
    count("zero-size", zero);
    count("tied", tied_within || tied_across);
    count("frozen", frozen);
    count("more ranks than elements", few);
    count("tied within a unit", tied_within);
    count("tied across units", tied_across);
    count("one element", one);
    count("frozen of odd types", odd);
    count("copied in", copied);
    count("f32 and bf16 in a unit", mixed);
    count("a unit without tensors", empty);
    count("outer unit", outer);
    static const char* const strategies[] = {
        "Replicate", "Zero1", "Zero2", "Zero3", "Zero3 after_backward", "ByBudget"};
    for (int s = 0; s < 6; ++s) count(strategies[s], static_cast<int>(c.strategy) == s);
    count("Fp32", c.precision == Precision::fp32);
    count("Bf16", c.precision == Precision::bf16);
    count("WithGradients<Bf16, float>", c.precision == Precision::bf16_fp32_gradients);
    count("WithReduced<Bf16, bf16>", c.precision == Precision::bf16_reduced);
    count("SplitMaster", c.precision == Precision::split);
    count("WithMoments<PureBf16<>, bf16>", c.precision == Precision::pure);
    count("WithMoments<Fp32, bf16>", c.precision == Precision::fp32_moments);
    count("one rank", c.world == 1);
    count("eight ranks", c.world == 8);
    count("micro-steps, reduced each", c.micro_steps > 1 && !c.once());
    count("micro-steps, reduced once", c.micro_steps > 1 && c.once());
    count("sequential", c.options.schedule == tessera::Schedule::sequential);
    count("buckets", c.options.bucket_bytes > 0);
    count("clip that may bind", c.options.clip_norm > 0 && c.options.clip_norm <= 1);
    count("evaluation", c.evaluates);
    count("leased twice in a forward", c.leases_twice);
    count("forward leases that overlap", c.overlapping);
    count("two forwards, two backwards", c.two_forwards && c.micro_steps > 1);
    count("other order in a step", c.other_order);
    count("a unit unused in a step", c.unused_unit >= 0);
    count("gradients not asked for", c.skips_gradients);
    count("backward with gradients_only", c.gradients_only);
    count("reduced gradients read", c.reads_gradients);
    count("set_full between steps", c.sets_values);
    count("inf in a gradient", c.infinite);
    count("the expected order only", c.expected_order());
    count("poisoned", c.poison);
    count("delayed streams", c.jitter_us > 0);
  }

  std::uint64_t cases() const { return cases_; }
  std::uint64_t of(const std::string& what) const {
    for (const auto& [name, number] : counts_) {
      if (name == what) return number;
    }
    return 0;
  }
  void print() const {
    std::printf("property: %llu cases, of which\n", static_cast<unsigned long long>(cases_));
    for (const auto& [name, number] : counts_) {
      std::printf("  %-32s %6llu\n", name.c_str(), static_cast<unsigned long long>(number));
    }
  }

 private:
  void count(const char* what, bool is) {
    for (auto& [name, number] : counts_) {
      if (name != what) continue;
      number += is ? 1 : 0;
      return;
    }
    counts_.push_back({what, is ? 1u : 0u});
  }

  std::uint64_t cases_ = 0;
  std::vector<std::pair<std::string, std::uint64_t>> counts_;
};

}  // namespace property
