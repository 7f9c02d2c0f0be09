#include <nanobind/nanobind.h>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "graph/breakpoints.h"
#include "graph/cuts.h"
#include "graph/dag.h"
#include "graph/edge_components.h"
#include "graph/levels.h"
#include "graph/prefix_cuts.h"
#include "graph/topo.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

template <typename T>
nb::object Widen(const std::vector<T>& values) {
  return ToNumpy({values.begin(), values.end()});
}

std::span<const int64_t> View(const Ints& array) { return {array.data(), array.size()}; }

/*! \brief Runs a function of the core without the interpreter's lock. */
template <typename Work>
auto Unlocked(const Work& work) {
  nb::gil_scoped_release release;
  return work();
}

nb::tuple BindLevels(const graph::Dag& dag, const Ints& node_ns, const Ints& edge_ns) {
  const auto [levels, path] = Unlocked([&] {
    graph::Levels found = graph::ComputeLevels(dag, View(node_ns), View(edge_ns));
    std::vector<int> longest = graph::CriticalPath(dag, found, View(node_ns), View(edge_ns));
    return std::pair(std::move(found), std::move(longest));
  });
  return nb::make_tuple(Widen(levels.tlevel_ns), Widen(levels.blevel_ns), Widen(path));
}

nb::tuple BindSegments(const graph::Dag& dag, const Ints& order, const Ints& edge_ns, int max_nodes,
                       int64_t max_bytes, const Ints& bytes, const Ints& label,
                       const Ints& devices) {
  const std::vector<int> labels = ToNarrow(label);
  const std::vector<uint64_t> bits = ToNarrow<uint64_t>(devices);
  const std::vector<int> nodes = ToNarrow(order);
  const graph::SegmentRules rules{max_nodes, max_bytes, View(bytes), labels, bits};
  const graph::Segments segments =
      Unlocked([&] { return graph::CutIntoSegments(dag, nodes, View(edge_ns), rules); });
  return nb::make_tuple(Widen(segments.starts), segments.cut_ns);
}

nb::tuple BindCuts(const graph::Dag& dag) {
  const graph::Cuts cuts = Unlocked([&] { return graph::FindCuts(dag); });
  return nb::make_tuple(Widen(cuts.is_articulation), Widen(cuts.is_bridge), Widen(cuts.component),
                        cuts.num_components);
}

nb::tuple BindPrefixCuts(const graph::Dag& dag, const Ints& order, int max_channels, int64_t target,
                         int64_t min_nodes, const Ints& is_allowed) {
  const std::vector<uint8_t> allowed = ToNarrow<uint8_t>(is_allowed);
  const std::vector<int> nodes = ToNarrow(order);
  const graph::PrefixCutRules rules{max_channels, target, min_nodes, allowed};
  const graph::PrefixCuts cuts =
      Unlocked([&] { return graph::BalancedPrefixCuts(dag, nodes, rules); });
  return nb::make_tuple(Widen(cuts.starts), cuts.cost);
}

}  // namespace

void BindGraph(nb::module_& module) {
  nb::class_<graph::Dag>(module, "Dag")
      .def("__init__",
           [](graph::Dag* self, const Ints& offsets, const Ints& successors) {
             new (self) graph::Dag(ToCsr(offsets, successors));
           })
      .def_prop_ro("offsets", [](const graph::Dag& dag) { return Widen(dag.successors.offsets); })
      .def_prop_ro("successors",
                   [](const graph::Dag& dag) { return Widen(dag.successors.values); });
  module.def("find_cycle", [](const graph::Dag& dag) { return Widen(graph::FindCycle(dag)); });
  module.def("strong_components",
             [](const graph::Dag& dag) { return Widen(graph::StrongComponents(dag)); });
  module.def("edge_connected_components", [](const graph::Dag& dag, int k) {
    return Widen(Unlocked([&] { return graph::EdgeConnectedComponents(dag, k); }));
  });
  module.def("quotient", [](const graph::Dag& dag, const Ints& group_of, int num_groups) {
    return graph::Quotient(dag, ToNarrow(group_of), num_groups);
  });
  module.def("breadth_first_order",
             [](const graph::Dag& dag) { return Widen(graph::BreadthFirstOrder(dag)); });
  module.def("depth_first_order",
             [](const graph::Dag& dag) { return Widen(graph::DepthFirstOrder(dag)); });
  module.def("critical_path_order", [](const graph::Dag& dag, const Ints& through_ns) {
    return Widen(CriticalPathOrder(dag, View(through_ns)));
  });
  module.def("levels", &BindLevels);
  module.def("cut_into_segments", &BindSegments);
  module.def("find_cuts", &BindCuts);
  module.def("balanced_prefix_cuts", &BindPrefixCuts);
}

}  // namespace heteroplace::bind
