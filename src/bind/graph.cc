// Graph algorithms on flat arrays.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

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

using graph::Dag;

std::tuple<NumpyInts, NumpyInts, NumpyInts> LevelsOf(const Dag& dag, const Ints& node_ns,
                                                     const Ints& edge_ns) {
  graph::Levels levels;
  std::vector<int> path;
  Unlocked([&] {
    levels = graph::ComputeLevels(dag, View(node_ns), View(edge_ns));
    path = graph::CriticalPath(dag, levels, View(node_ns), View(edge_ns));
  });
  return {ToNumpy(std::move(levels.tlevel_ns)), ToNumpy(std::move(levels.blevel_ns)), Widen(path)};
}

std::pair<NumpyInts, int64_t> CutOrder(const Dag& dag, const Ints& order, const Ints& edge_ns,
                                       int max_nodes, int64_t max_bytes, const Ints& bytes,
                                       const Ints& label, const Ints& devices) {
  const std::vector<int> labels = ToNarrow(label), nodes = ToNarrow(order);
  const std::vector<uint64_t> bits = ToNarrow<uint64_t>(devices);
  const graph::SegmentRules rules{max_nodes, max_bytes, View(bytes), labels, bits};
  const graph::Segments segments =
      Unlocked([&] { return graph::CutIntoSegments(dag, nodes, View(edge_ns), rules); });
  return {Widen(segments.starts), segments.cut_ns};
}

std::tuple<NumpyInts, NumpyInts, NumpyInts, int> CutsOf(const Dag& dag) {
  const graph::Cuts cuts = Unlocked([&] { return graph::FindCuts(dag); });
  return {Widen(cuts.is_articulation), Widen(cuts.is_bridge), Widen(cuts.component),
          cuts.num_components};
}

std::pair<NumpyInts, int64_t> CutIntoModules(const Dag& dag, const Ints& order, int max_channels,
                                             int64_t target_nodes, int64_t min_nodes,
                                             const Ints& is_allowed) {
  const std::vector<uint8_t> allowed = ToNarrow<uint8_t>(is_allowed);
  const std::vector<int> nodes = ToNarrow(order);
  const graph::PrefixCutRules rules{max_channels, target_nodes, min_nodes, allowed};
  const graph::PrefixCuts cuts =
      Unlocked([&] { return graph::BalancedPrefixCuts(dag, nodes, rules); });
  return {Widen(cuts.starts), cuts.cost};
}

/*! \brief A function of a graph alone, [num_nodes]. */
template <std::vector<int> (*kOf)(const Dag&)>
NumpyInts Nodes(const Dag& dag) {
  return Widen(Unlocked([&] { return kOf(dag); }));
}

}  // namespace

void BindGraph(nb::module_& module) {
  nb::class_<Dag>(module, "Dag", "A directed graph; see src/graph/dag.h.")
      .def(
          "__init__",
          [](Dag* self, const Ints& offsets, const Ints& successors) {
            new (self) Dag(ToCsr(offsets, successors));
          },
          nb::arg("offsets"), nb::arg("successors"),
          "Offsets [num_nodes + 1] into the successors [num_edges], ascending for each node.")
      .def_prop_ro(
          "offsets", [](const Dag& dag) { return Widen(dag.successors.offsets); },
          nb::rv_policy::automatic, "[num_nodes + 1]")
      .def_prop_ro(
          "successors", [](const Dag& dag) { return Widen(dag.successors.values); },
          nb::rv_policy::automatic, "[num_edges]");
  module.def(
      "task_dag", [](const model::Problem& problem) { return Dag(problem.successors); },
      nb::arg("problem"), "The tasks of a problem and the edges between them.");
  module.def("find_cycle", &Nodes<&graph::FindCycle>, nb::arg("dag"),
             "Nodes of one cycle in order, or none.");
  module.def("strong_components", &Nodes<&graph::StrongComponents>, nb::arg("dag"),
             "Component of each node, [num_nodes].");
  module.def(
      "edge_connected_components",
      [](const Dag& dag, int k) {
        return Widen(Unlocked([&] { return graph::EdgeConnectedComponents(dag, k); }));
      },
      nb::arg("dag"), nb::arg("k"),
      "Component of each node, [num_nodes]: no cut of fewer than k edges parts one.");
  module.def(
      "quotient",
      [](const Dag& dag, const Ints& group_of, int num_groups) {
        return graph::Quotient(dag, ToNarrow(group_of), num_groups);
      },
      nb::arg("dag"), nb::arg("group_of"), nb::arg("num_groups"),
      "The graph of groups; `group_of` [num_nodes].");
  module.def("breadth_first_order", &Nodes<&graph::BreadthFirstOrder>, nb::arg("dag"),
             "M-TOPO of Celeritas, [num_nodes].");
  module.def("depth_first_order", &Nodes<&graph::DepthFirstOrder>, nb::arg("dag"),
             "DFS-TOPO of Celeritas, [num_nodes].");
  module.def(
      "critical_path_order",
      [](const Dag& dag, const Ints& through_ns) {
        return Widen(graph::CriticalPathOrder(dag, View(through_ns)));
      },
      nb::arg("dag"), nb::arg("through_ns"),
      "CPD-TOPO of Celeritas, [num_nodes]; `through_ns` [num_nodes], longest path through each.");
  module.def("levels", &LevelsOf, nb::arg("dag"), nb::arg("node_ns"), nb::arg("edge_ns"),
             "(t-level [num_nodes], b-level [num_nodes], nodes of a critical path), in ns.");
  module.def("cut_into_segments", &CutOrder, nb::arg("dag"), nb::arg("order"), nb::arg("edge_ns"),
             nb::arg("max_nodes"), nb::arg("max_bytes"), nb::arg("bytes"), nb::arg("label"),
             nb::arg("devices"),
             "(positions where segments begin, cost of the edges between them in ns); see "
             "src/graph/breakpoints.h.");
  module.def("find_cuts", &CutsOf, nb::arg("dag"),
             "(is an articulation point [num_nodes], is a bridge [num_edges], component "
             "[num_nodes], their number).");
  module.def("balanced_prefix_cuts", &CutIntoModules, nb::arg("dag"), nb::arg("order"),
             nb::arg("max_channels"), nb::arg("target_nodes"), nb::arg("min_nodes"),
             nb::arg("is_allowed"),
             "(positions where modules begin, sum of squares of their excess); see "
             "src/graph/prefix_cuts.h.");
}

}  // namespace heteroplace::bind
