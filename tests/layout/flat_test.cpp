// Units -> flat parameters -> pieces, in constant expressions and against a walk over elements.
#include <array>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <tessera/layout/flat.hpp>

namespace ts = tessera;
using ts::DType;
using namespace tessera::layout;

namespace {

template <std::size_t N>
struct Laid {
  std::array<TensorPlacement, N> places{};
  UnitLayout unit;
};
template <std::size_t N>
constexpr Laid<N> laid(const std::array<TensorExtent, N>& tensors, int world) {
  Laid<N> result;
  result.unit = lay_out(tensors, world, result.places);
  return result;
}

// 10 elements over 3 ranks (B011), with an empty and a frozen tensor and a second type.
constexpr std::array<TensorExtent, 5> kMixed = {
    {{10}, {0}, {65}, {7, DType::f32, false}, {100, DType::bf16}}};
constexpr auto kThree = laid(kMixed, 3);

static_assert(kThree.unit.group_count == 3);
static_assert(kThree.unit.world == 3);
static_assert(kThree.places[0].group == 0 && kThree.places[0].offset == 0);
static_assert(kThree.places[1].group == 0 && kThree.places[1].offset == 64);
static_assert(kThree.places[2].group == 0 && kThree.places[2].offset == 64);  // no room taken
static_assert(kThree.places[3].group == 1 && kThree.places[3].offset == 0);
static_assert(kThree.places[4].group == 2 && kThree.places[4].offset == 0);
static_assert(kThree.unit.groups[0].used_elements == 192);
static_assert(kThree.unit.groups[0].piece_elements == 64);
static_assert(kThree.unit.groups[0].full_elements(3) == 192);
static_assert(!kThree.unit.groups[1].trainable && kThree.unit.groups[1].piece_elements == 64);
static_assert(kThree.unit.groups[2].dtype == DType::bf16);
static_assert(kThree.unit.groups[2].piece_bytes() == 128);
static_assert(kThree.unit.piece_bytes() == 256 + 256 + 128);
static_assert(kThree.unit.full_bytes() == 3 * (256 + 256 + 128));
static_assert(kThree.unit.full_offset(2) == 3 * 512 && kThree.unit.piece_offset(2) == 512);
static_assert(kThree.unit.trainable_piece_elements() == 128);
static_assert(kThree.unit.state_offset(1) == 64 && kThree.unit.state_offset(2) == 64);

// P020, B004: a short tensor lies whole on one rank, the others hold nothing of it.
static_assert(owned(kThree.unit.groups[0], kThree.places[0], 10, 0) == Range{0, 10});
static_assert(owned(kThree.unit.groups[0], kThree.places[0], 10, 1).empty());
static_assert(owned(kThree.unit.groups[0], kThree.places[2], 65, 1) == Range{0, 64});
static_assert(owned(kThree.unit.groups[0], kThree.places[2], 65, 2) == Range{64, 65});
static_assert(owned(kThree.unit.groups[0], kThree.places[1], 0, 1).empty());

// B008: 32001 x 3 over 8.
constexpr auto kHead = laid(std::array<TensorExtent, 1>{{{32001 * 3}}}, 8);
static_assert(kHead.unit.groups[0].piece_elements == 12032);
static_assert(owned(kHead.unit.groups[0], kHead.places[0], 32001 * 3, 7) ==
              Range{7 * 12032, 32001 * 3});

// B118: beyond 2^32 elements.
constexpr auto kHuge = laid(std::array<TensorExtent, 1>{{{(std::uint64_t{1} << 41) + 8}}}, 2);
static_assert(kHuge.unit.groups[0].piece_elements == (std::uint64_t{1} << 40) + 64);
static_assert(kHuge.unit.full_bytes() == (std::uint64_t{1} << 43) + 512);

// P001: a unit without tensors.
constexpr auto kNothing = laid(std::array<TensorExtent, 0>{}, 4);
static_assert(kNothing.unit.group_count == 0 && kNothing.unit.full_bytes() == 0);

static_assert(round_up(0, 64) == 0 && round_up(1, 64) == 64 && round_up(64, 64) == 64);

}  // namespace

TEST_CASE("P011, P014, B009: every element has one owner; pieces are equal and whole granules") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int world = static_cast<int>(random() % 12) + 1;
    std::vector<TensorExtent> tensors(random() % 6 + 1);
    for (TensorExtent& tensor : tensors) {
      constexpr std::uint64_t kSizes[] = {0, 1, 63, 64, 65, 257, 1000, 4096};
      tensor.elements = kSizes[random() % 8];
      tensor.dtype = random() % 3 == 0 ? DType::bf16 : DType::f32;
      tensor.trainable = random() % 4 != 0;
    }
    std::vector<TensorPlacement> places(tensors.size());
    const UnitLayout unit = lay_out(tensors, world, places);
    CAPTURE(round);
    std::uint64_t piece_bytes = 0;
    for (const GroupLayout& group : unit.used()) {
      CHECK(group.piece_elements % kGranule == 0);
      CHECK(group.full_elements(world) >= group.used_elements);
      // Padding is less than a granule a rank.
      CHECK(group.full_elements(world) - group.used_elements <
            kGranule * static_cast<std::uint64_t>(world));
      piece_bytes += group.piece_bytes();
    }
    CHECK(unit.piece_bytes() == piece_bytes);
    CHECK(unit.full_bytes() == piece_bytes * static_cast<std::uint64_t>(world));
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const GroupLayout& group = unit.groups[places[t].group];
      CHECK(group.dtype == tensors[t].dtype);
      CHECK(group.trainable == tensors[t].trainable);
      CHECK(places[t].offset % kGranule == 0);
      std::uint64_t next = 0;
      for (int r = 0; r < world; ++r) {
        const Range range = owned(group, places[t], tensors[t].elements, r);
        if (range.empty()) continue;
        CHECK(range.begin == next);  // in rank order, without gaps or overlap
        CHECK(range.begin % kGranule == 0);
        next = range.end;
      }
      CHECK(next == tensors[t].elements);
      for (std::size_t other = 0; other < t; ++other) {  // tensors do not overlap
        if (places[other].group != places[t].group) continue;
        CHECK(places[other].offset + tensors[other].elements <= places[t].offset);
      }
    }
  }
}

TEST_CASE("B019: all pairs of type and trainable or frozen that there are fit into one unit") {
  std::vector<TensorExtent> tensors;
  for (int d = 0; d <= static_cast<int>(DType::opaque16); ++d) {
    for (bool trainable : {true, false}) {
      tensors.push_back({70, static_cast<DType>(d), trainable});
    }
  }
  std::vector<TensorPlacement> places(tensors.size());
  const UnitLayout unit = lay_out(tensors, 2, places);
  CHECK(unit.group_count == tensors.size());
  CHECK(unit.group_count <= kMaxGroups);
}
