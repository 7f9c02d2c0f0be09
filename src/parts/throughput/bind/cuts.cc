// Narrow cuts of graphs.
#include "parts/throughput/cuts/cuts.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include "bind/arrays.h"
#include "parts/throughput/bind/bind.h"
#include "parts/throughput/cuts/edge_components.h"
#include "parts/throughput/cuts/prefix_cuts.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using graph::Dag;

std::tuple<NumpyInts, NumpyInts, NumpyInts, int> CutsOf(const Dag& dag) {
  const throughput::Cuts cuts = Unlocked([&] { return throughput::FindCuts(dag); });
  return {Widen(cuts.is_articulation), Widen(cuts.is_bridge), Widen(cuts.component),
          cuts.num_components};
}

std::pair<NumpyInts, int64_t> CutIntoModules(const Dag& dag, const Ints& order, int max_channels,
                                             int64_t target_nodes, int64_t min_nodes,
                                             const Ints& is_allowed) {
  const std::vector<uint8_t> allowed = ToNarrow<uint8_t>(is_allowed);
  const std::vector<int> nodes = ToNarrow(order);
  const throughput::PrefixCutRules rules{max_channels, target_nodes, min_nodes, allowed};
  const throughput::PrefixCuts cuts =
      Unlocked([&] { return throughput::BalancedPrefixCuts(dag, nodes, rules); });
  return {Widen(cuts.starts), cuts.cost};
}

}  // namespace

void BindCuts(nb::module_& module) {
  module.def(
      "edge_connected_components",
      [](const Dag& dag, int k) {
        return Widen(Unlocked([&] { return throughput::EdgeConnectedComponents(dag, k); }));
      },
      nb::arg("dag"), nb::arg("k"),
      "Component of each node, [num_nodes]: no cut of fewer than k edges parts one.");
  module.def("find_cuts", &CutsOf, nb::arg("dag"),
             "(is an articulation point [num_nodes], is a bridge [num_edges], component "
             "[num_nodes], their number).");
  module.def("balanced_prefix_cuts", &CutIntoModules, nb::arg("dag"), nb::arg("order"),
             nb::arg("max_channels"), nb::arg("target_nodes"), nb::arg("min_nodes"),
             nb::arg("is_allowed"),
             "(positions where modules begin, sum of squares of their excess); see "
             "src/parts/throughput/cuts/prefix_cuts.h.");
}

}  // namespace heteroplace::bind
