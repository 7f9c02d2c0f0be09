// Classes of the package and sequences of integers, as arguments and results of the bindings.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "bind/arrays.h"

namespace heteroplace::bind {

/*! \brief The full name of a class, as an argument of a template. */
template <size_t kSize>
struct ClassName {
  char text[kSize];
  constexpr ClassName(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }
};

/*! \brief An object of a class of the package. */
template <ClassName kName>
struct Instance {
  nanobind::object object;

  /*! \brief Makes one of the arguments of the class. */
  template <typename... Fields>
  static Instance Of(Fields&&... fields) {
    constexpr std::string_view name = kName.text;
    const std::string module(name.substr(0, name.rfind('.')));
    return {nanobind::module_::import_(module.c_str())
                .attr(kName.text + module.size() + 1)(std::forward<Fields>(fields)...)};
  }
  /*! \brief A field of it. */
  template <typename T>
  T Get(const char* field) const {
    return nanobind::cast<T>(object.attr(field));
  }
};

/*! \brief The values as a tuple. */
template <typename T>
nanobind::typed<nanobind::tuple, T, nanobind::ellipsis> ToTuple(const std::vector<T>& values) {
  return nanobind::tuple(nanobind::cast(values));
}

/*! \brief Numbers that Python passes as an array or as any iterable. */
template <typename T>
struct Sequence
    : nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu> {
  using Array = typename Sequence::ndarray;
};
using IntSequence = Sequence<int64_t>;

}  // namespace heteroplace::bind

namespace nanobind::detail {

template <heteroplace::bind::ClassName kName>
struct type_caster<heteroplace::bind::Instance<kName>> {
  NB_TYPE_CASTER(heteroplace::bind::Instance<kName>, const_name(kName.text))

  bool from_python(handle source, auto, cleanup_list*) noexcept {
    value.object = borrow(source);
    return true;
  }
  static handle from_cpp(const Value& instance, rv_policy, cleanup_list*) noexcept {
    return instance.object.inc_ref();
  }
};

template <typename T>
struct type_caster<heteroplace::bind::Sequence<T>> {
  static constexpr bool kIsInt = std::is_integral_v<T>;
  NB_TYPE_CASTER(heteroplace::bind::Sequence<T>, const_name("collections.abc.Iterable[") +
                                                     const_name<kIsInt>("int", "float") +
                                                     const_name("]"))

  bool from_python(handle source, auto flags, cleanup_list* cleanup) noexcept {
    make_caster<typename Value::Array> array;
    try {
      object numbers = borrow(source);
      if (!ndarray_check(source)) {
        const object make = module_::import_("numpy").attr("array");
        numbers = make(list(source), kIsInt ? "q" : "d");
      }
      if (!array.from_python(numbers, flags, cleanup)) return false;
    } catch (python_error&) {
      return false;
    }
    static_cast<typename Value::Array&>(value) = std::move(array.value);
    return true;
  }
};

}  // namespace nanobind::detail
