// `_core.Dag`: graph algorithms on flat arrays.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bind/bind.h"
#include "bind/values.h"
#include "graph/breakpoints.h"
#include "graph/dag.h"
#include "graph/levels.h"
#include "graph/topo.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using graph::Dag;
using Levels = Instance<"heteroplace.native.core_graph.Levels">;
using SegmentRules = Instance<"heteroplace.native.core_graph.SegmentRules">;

Levels LevelsOf(const Dag& dag, const IntSequence& node_ns, const IntSequence& edge_ns) {
  graph::Levels levels;
  std::vector<int> path;
  Unlocked([&] {
    levels = graph::ComputeLevels(dag, View(node_ns), View(edge_ns));
    path = graph::CriticalPath(dag, levels, View(node_ns), View(edge_ns));
  });
  return Levels::Of(ToNumpy(std::move(levels.tlevel_ns)), ToNumpy(std::move(levels.blevel_ns)),
                    Widen(path));
}

std::pair<std::vector<int>, int64_t> CutIntoSegments(const Dag& dag, const IntSequence& order,
                                                     const IntSequence& edge_ns,
                                                     const SegmentRules& given) {
  const std::vector<int> nodes = ToNarrow(order);
  const auto bytes = given.Get<Ints>("node_bytes");
  const std::vector<int> labels = ToNarrow(given.Get<Ints>("label"));
  const std::vector<uint64_t> bits = ToNarrow<uint64_t>(given.Get<Ints>("device_bits"));
  const graph::SegmentRules rules{given.Get<int>("max_nodes"), given.Get<int64_t>("max_bytes"),
                                  View(bytes), labels, bits};
  graph::Segments found =
      Unlocked([&] { return graph::CutIntoSegments(dag, nodes, View(edge_ns), rules); });
  return {std::move(found.starts), found.cut_ns};
}

/*! \brief A function of a graph alone, [num_nodes]. */
template <std::vector<int> (*kOf)(const Dag&)>
NumpyInts Nodes(const Dag& dag) {
  return Widen(Unlocked([&] { return kOf(dag); }));
}

void BindOrders(nb::class_<Dag>& dag) {
  dag.def("breadth_first_order", &Nodes<&graph::BreadthFirstOrder>,
          "M-TOPO of Celeritas: freed nodes go to the tail of the list.")
      .def("depth_first_order", &Nodes<&graph::DepthFirstOrder>,
           "DFS-TOPO of Celeritas: freed nodes go to the head of the list.")
      .def(
          "critical_path_order",
          [](const Dag& self, const IntSequence& through_ns) {
            return Widen(graph::CriticalPathOrder(self, View(through_ns)));
          },
          nb::arg("through_ns"),
          "CPD-TOPO of Celeritas: as DFS-TOPO, the longest path (`Levels.through_ns`) first.")
      .def("levels", &LevelsOf, nb::arg("node_ns"), nb::arg("edge_ns"),
           "Return t-level, b-level and a critical path, for times of nodes and edges in ns.")
      .def("cut_into_segments", &CutIntoSegments, nb::arg("order"), nb::arg("edge_ns"),
           nb::arg("rules"), R"(
Cut a topological order so that the edges between segments cost least.

Returns
-------
Positions in `order` where segments begin, and the cost of the edges between segments in ns.
)");
}

}  // namespace

void BindGraph(nb::module_& module) {
  nb::class_<Dag> dag(module, "Dag", "The edges of a graph; see src/graph/dag.h.");
  dag.def(
         "__init__",
         [](Dag* self, const Ints& offsets, const Ints& successors) {
           new (self) Dag(ToCsr({offsets, successors}));
         },
         nb::arg("offsets"), nb::arg("successors"),
         "Offsets [num_nodes + 1] into the successors [num_edges], ascending for each node.")
      .def_prop_ro(
          "offsets", [](const Dag& self) { return Widen(self.successors.offsets); },
          nb::rv_policy::automatic, "[num_nodes + 1]")
      .def_prop_ro(
          "heads", [](const Dag& self) { return Widen(self.successors.values); },
          nb::rv_policy::automatic, "[num_edges]: where each edge leads to.")
      .def_prop_ro("num_nodes", &Dag::num_nodes, "Number of nodes.")
      .def_prop_ro("num_edges", &Dag::num_edges, "Number of edges.")
      .def(
          "cycle", [](const Dag& self) { return graph::FindCycle(self); },
          "Return the nodes of one cycle in order; empty if there is none.")
      .def(
          "quotient_edges",
          [](const Dag& self, const IntSequence& group_of, int num_groups) {
            const Dag groups = graph::Quotient(self, ToNarrow(group_of), num_groups);
            return std::pair(Widen(groups.successors.offsets), Widen(groups.successors.values));
          },
          nb::arg("group_of"), nb::arg("num_groups"), "Arguments of the graph of groups.")
      .def("strong_components", &Nodes<&graph::StrongComponents>, R"(
Return the component of each node: two share one if each reaches the other.

Edges between components lead to higher numbers. O(n + m).
)");
  BindOrders(dag);
}

}  // namespace heteroplace::bind
