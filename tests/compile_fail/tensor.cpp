// What tensor/ refuses to compile, and the sentence that it says.

#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>
#include <tessera/tensor/adapters.hpp>
#include <tessera/tensor/arguments.hpp>

namespace ts = tessera;

namespace user {
struct Plain {};
struct Half {
  std::uint16_t bits;
};
struct WrongElement {};
struct NoShape {};
struct NoData {};
struct BadRebind {};
struct BadContiguous {};
struct NoDType {};
struct Pair {
  std::vector<float> a, b;
};
auto tensors_of(Pair& pair) { return std::tie(pair.a, pair.b); }
struct Copies {
  std::vector<float> a;
};
auto tensors_of(Copies& copies) { return std::make_tuple(copies.a); }
struct NoTuple {
  std::vector<float> a;
};
auto tensors_of(NoTuple& object) { return &object.a; }
}  // namespace user

template <>
struct tessera::ElementTraits<user::WrongElement> {
  static constexpr DType dtype = DType::f32;  // it is one byte
};
template <>
struct tessera::TensorTraits<user::NoShape> {
  using element = float;
  static float* data(user::NoShape&);
};
template <>
struct tessera::TensorTraits<user::NoData> {
  using element = float;
  static Shape shape(const user::NoData&);
  static double* data(user::NoData&);
};
template <>
struct tessera::TensorTraits<user::BadRebind> {
  using element = float;
  static Shape shape(const user::BadRebind&);
  static float* data(user::BadRebind&);
  static void rebind(user::BadRebind&);
};
template <>
struct tessera::TensorTraits<user::BadContiguous> {
  using element = float;
  static Shape shape(const user::BadContiguous&);
  static float* data(user::BadContiguous&);
  static bool contiguous();
};
template <>
struct tessera::TensorTraits<user::NoDType> {
  using element = void;
  static Shape shape(const user::NoDType&);
  static void* data(user::NoDType&);
};

template <class... A>
void add(A&&... arguments) {
  ts::for_each_tensor([](ts::TensorHandle&&, ts::TensorOptions&&) {},
                      std::forward<A>(arguments)...);
}

void test() {
  std::vector<float> tensor(3);
  std::vector<int> integers(3);
  float* pointer = nullptr;
  user::Pair pair;
  add(tensor, ts::tensor(pointer, {3}), pair, ts::named("ids", ts::frozen(integers)));

#if defined(CASE_rvalue)
  // EXPECT: tessera: pass tensors by lvalue: the Shard keeps their address
  add(std::vector<float>(3));
#elif defined(CASE_moved)
  // EXPECT: tessera: pass tensors by lvalue: the Shard keeps their address
  add(tensor, std::move(tensor));
#elif defined(CASE_rvalue_in_modifier)
  // EXPECT: tessera: pass tensors by lvalue: the Shard keeps their address
  add(ts::named("w", ts::frozen(std::vector<float>(3))));
#elif defined(CASE_rvalue_struct)
  // EXPECT: tessera: pass tensors by lvalue: the Shard keeps their address
  add(user::Pair{});
#elif defined(CASE_struct_of_copies)
  // EXPECT: tessera: pass tensors by lvalue: the Shard keeps their address
  user::Copies copies;
  add(copies);
#elif defined(CASE_struct_without_tuple)
  // EXPECT: tessera: tensors_of(T&) has to return std::tie(...) of the tensors
  user::NoTuple object;
  add(object);
#elif defined(CASE_not_specialised)
  // EXPECT: tessera: TensorTraits<T> is not specialised for this type: give element, shape(const T&), data(T&) and, if the tensor can be pointed at other memory, rebind(T&, element*)
  user::Plain plain;
  add(plain);
#elif defined(CASE_traits_used_directly)
  // EXPECT: tessera: TensorTraits<T> is not specialised for this type
  user::Plain plain;
  (void)ts::TensorTraits<user::Plain>::shape(plain);
#elif defined(CASE_handle_of_unknown)
  // EXPECT: tessera: TensorTraits<T> is not specialised for this type
  user::Plain plain;
  (void)ts::TensorHandle::of(plain);
#elif defined(CASE_raw_pointer)
  // EXPECT: tessera: a raw pointer has no shape: write ts::tensor(pointer, {rows, columns})
  add(pointer);
#elif defined(CASE_const_tensor)
  // EXPECT: tessera: a const tensor cannot be sharded
  const std::vector<float> constant(3);
  add(constant);
#elif defined(CASE_const_tensor_in_modifier)
  // EXPECT: tessera: a const tensor cannot be sharded
  const std::vector<float> constant(3);
  add(ts::no_decay(constant));
#elif defined(CASE_const_elements)
  // EXPECT: tessera: a tensor of const elements cannot be sharded
  std::span<const float> constant(tensor);
  add(constant);
#elif defined(CASE_const_elements_of_pointer)
  // EXPECT: tessera: a tensor of const elements cannot be sharded
  const float* constant = nullptr;
  add(ts::tensor(constant, {3}));
#elif defined(CASE_unknown_element)
  // EXPECT: tessera: ElementTraits<E> is not specialised for this element type
  std::vector<user::Half> halves(3);
  add(halves);
#elif defined(CASE_unknown_element_used_directly)
  // EXPECT: tessera: ElementTraits<E> is not specialised for this element type
  (void)ts::ElementTraits<user::Half>::dtype;
#elif defined(CASE_element_of_wrong_size)
  // EXPECT: tessera: the element type has to be trivially copyable and of the size of the DType
  std::vector<user::WrongElement> elements(3);
  add(elements);
#elif defined(CASE_vector_of_bool)
  // EXPECT: tessera: TensorTraits<T> is not specialised for this type
  std::vector<bool> flags(3);
  add(ts::frozen(flags));
#elif defined(CASE_rvalue_pointer)
  // EXPECT: tessera: ts::tensor takes your own pointer variable as a non-const lvalue
  add(ts::tensor(tensor.data(), {3}));
#elif defined(CASE_const_pointer)
  // EXPECT: tessera: ts::tensor takes your own pointer variable as a non-const lvalue
  float* const constant = nullptr;
  add(ts::tensor(constant, {3}));
#elif defined(CASE_smart_pointer)
  // EXPECT: tessera: ts::tensor takes your own pointer variable as a non-const lvalue
  std::unique_ptr<float[]> owner;
  (void)ts::tensor(owner, {3});
#elif defined(CASE_void_pointer)
  // EXPECT: tessera: ts::tensor takes a pointer to elements, not to void
  void* untyped = nullptr;
  (void)ts::tensor(untyped, {3});
#elif defined(CASE_integers_are_not_trained)
  // EXPECT: tessera: only f32, bf16 and f16 tensors are trained: pass this one as ts::frozen(tensor)
  add(integers);
#elif defined(CASE_integers_behind_a_pointer_are_not_trained)
  // EXPECT: tessera: only f32, bf16 and f16 tensors are trained: pass this one as ts::frozen(tensor)
  int* ids = nullptr;
  add(ts::named("ids", ts::tensor(ids, {3})));
#elif defined(CASE_no_shape)
  // EXPECT: tessera: TensorTraits<T> needs static Shape shape(const T&)
  user::NoShape object;
  add(object);
#elif defined(CASE_no_data)
  // EXPECT: tessera: TensorTraits<T> needs static element* data(T&)
  user::NoData object;
  add(object);
#elif defined(CASE_bad_rebind)
  // EXPECT: tessera: TensorTraits<T>::rebind has to be callable as rebind(T&, element*)
  user::BadRebind object;
  add(object);
#elif defined(CASE_bad_contiguous)
  // EXPECT: tessera: TensorTraits<T>::contiguous has to be callable as contiguous(const T&)
  user::BadContiguous object;
  add(object);
#elif defined(CASE_no_dtype)
  // EXPECT: tessera: TensorTraits<T>::element is void, so give static DType dtype(const T&)
  user::NoDType object;
  add(object);
#elif defined(CASE_nine_extents)
  // EXPECT: tessera: a Shape has at most 8 extents
  ts::Shape shape{1, 1, 1, 1, 1, 1, 1, 1, 1};
#endif
}
