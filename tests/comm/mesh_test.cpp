#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>
#include <tessera/tessera.hpp>

using namespace tessera;

TEST_CASE("mesh shape: places and ranks are each other's inverse, tensor innermost") {
  for (const MeshShape shape : {MeshShape{1, 1, 1}, {2, 3, 4}, {1, 5, 1}, {3, 1, 2}, {4, 1, 1}}) {
    for (int r = 0; r < shape.size(); ++r) {
      const MeshPlace at = shape.place(r);
      CHECK(shape.rank(at) == r);
      CHECK(shape.data_rank(at) == r / shape.tensor);
    }
  }
  CHECK((MeshShape{2, 3, 4}.place(1) == MeshPlace{0, 0, 1}));
  CHECK((MeshShape{2, 3, 4}.place(4) == MeshPlace{0, 1, 0}));
  CHECK((MeshShape{2, 3, 4}.place(12) == MeshPlace{1, 0, 0}));
  CHECK((MeshShape{2, 3, 4}.describe() == "replicate=2, shard=3, tensor=4"));
  CHECK(MeshShape{}.describe() == "shard=1");
}

TEST_CASE("mesh shape: axes that do not make up the ranks are refused") {
  for (const MeshShape shape :
       {MeshShape{2, 2, 1}, {0, 3, 1}, {-1, -3, 1}, {1 << 30, 1 << 30, 3}, {3, 1, 0}}) {
    CHECK_THROWS_WITH_AS(shape.check(3), doctest::Contains("their product the number of ranks"),
                         Error);
  }
}

TEST_CASE("mesh: groups along the axes have the ranks that differ in that coordinate only") {
  for (const MeshShape shape :
       {MeshShape{2, 2, 2}, {1, 4, 1}, {4, 1, 1}, {1, 1, 4}, {1, 2, 3}, {3, 2, 1}, {2, 1, 2}}) {
    CAPTURE(shape.describe());
    run_ranks(shape.size(), [&](InProcess ranks) {
      const double mine = ranks.rank();
      Mesh<Host> mesh(ranks, shape);
      const MeshPlace at = mesh.place();
      const auto expect = [&](InProcess& group, int size, int place, auto coordinate) {
        REQUIRE(group.size() == size);
        REQUIRE(group.rank() == place);
        const std::vector<double> members = group.exchange(mine);
        for (int i = 0; i < size; ++i) {
          REQUIRE(members[static_cast<std::size_t>(i)] == shape.rank(coordinate(i)));
        }
      };
      expect(mesh.shard(), shape.shard, at.shard, [&](int i) {
        return MeshPlace{at.replicate, i, at.tensor};
      });
      expect(mesh.replicate(), shape.replicate, at.replicate, [&](int i) {
        return MeshPlace{i, at.shard, at.tensor};
      });
      expect(mesh.tensor(), shape.tensor, at.tensor, [&](int i) {
        return MeshPlace{at.replicate, at.shard, i};
      });
      expect(mesh.data(), shape.data_ranks(), shape.data_rank(at), [&](int i) {
        return MeshPlace{i / shape.shard, i % shape.shard, at.tensor};
      });
      REQUIRE(mesh.describe() ==
              shape.describe() + ", this is rank " + std::to_string(ranks.rank()));
    });
  }
}

TEST_CASE("mesh: a shape that does not fit is refused by all ranks") {
  CHECK_THROWS_WITH_AS(
      run_ranks(3, [](InProcess ranks) { Mesh<Host>(ranks, MeshShape{.shard = 2, .tensor = 2}); }),
      doctest::Contains("cannot be made of 3 ranks"), Error);
}
