#include "graph/breakpoints.h"

#include <algorithm>
#include <limits>
#include <string>

#include "support/error.h"

namespace heteroplace::graph {

namespace {

/*! \brief The segment that ends before some position and grows to the left, node by node. */
class GrowingSegment {
 public:
  explicit GrowingSegment(const SegmentRules& rules, size_t words)
      : rules_(rules), words_(words), common_(words) {}

  /*! \brief Begins with one node, which is always allowed. */
  void Begin(int node) {
    num_nodes_ = 1;
    bytes_ = rules_.bytes[node];
    label_ = rules_.label[node];
    for (size_t word = 0; word < words_; ++word) common_[word] = Word(node, word);
  }

  /*! \brief Takes one more node; false: the segment may not have it, nor any beyond it. */
  bool Grow(int node) {
    if (num_nodes_ >= rules_.max_nodes) return false;
    if (rules_.bytes[node] > rules_.max_bytes - bytes_) return false;
    const int label = rules_.label[node];
    if (label >= 0 && label_ >= 0 && label != label_) return false;
    bool has_common = words_ == 0;
    for (size_t word = 0; word < words_; ++word) {
      common_[word] &= Word(node, word);
      has_common = has_common || common_[word] != 0;
    }
    if (!has_common) return false;
    ++num_nodes_;
    bytes_ += rules_.bytes[node];
    label_ = std::max(label_, label);
    return true;
  }

 private:
  uint64_t Word(int node, size_t word) const {
    return rules_.devices[static_cast<size_t>(node) * words_ + word];
  }

  const SegmentRules& rules_;
  size_t words_;
  std::vector<uint64_t> common_;
  int num_nodes_ = 0;
  int64_t bytes_ = 0;
  int label_ = -1;
};

void CheckSizes(const Dag& dag, std::span<const int64_t> edge_ns, const SegmentRules& rules) {
  const auto nodes = static_cast<size_t>(dag.num_nodes());
  const bool agrees = edge_ns.size() == static_cast<size_t>(dag.num_edges()) &&
                      rules.bytes.size() == nodes && rules.label.size() == nodes &&
                      (nodes == 0 || rules.devices.size() % nodes == 0);
  if (!agrees) throw Error(ErrorKind::kGraph, "the arrays of a graph have sizes that disagree");
  if (rules.max_nodes < 1) {
    throw Error(ErrorKind::kGraph, "a segment may have " + std::to_string(rules.max_nodes) +
                                       " nodes; expected at least 1");
  }
}

}  // namespace

std::vector<int> Positions(const Dag& dag, std::span<const int> order) {
  const auto nodes = static_cast<size_t>(dag.num_nodes());
  std::vector<int> position(nodes, -1);
  bool is_valid = order.size() == nodes;
  for (size_t index = 0; is_valid && index < nodes; ++index) {
    const int node = order[index];
    is_valid = node >= 0 && node < dag.num_nodes() && position[node] < 0;
    if (is_valid) position[node] = static_cast<int>(index);
  }
  for (int node = 0; is_valid && node < dag.num_nodes(); ++node) {
    for (int next : dag.successors[node]) is_valid = is_valid && position[node] < position[next];
  }
  if (!is_valid) {
    throw Error(ErrorKind::kGraph, "an order of " + std::to_string(order.size()) +
                                       " nodes is not a topological " + "order of the graph's " +
                                       std::to_string(nodes) + "; take one of topo.h");
  }
  return position;
}

Segments CutIntoSegments(const Dag& dag, std::span<const int> order,
                         std::span<const int64_t> edge_ns, const SegmentRules& rules) {
  CheckSizes(dag, edge_ns, rules);
  const std::vector<int> position = Positions(dag, order);
  const auto nodes = order.size();
  // leaving[i]: weight of the edges from the node at i to nodes at or after the current end. One
  // pass over the edges keeps it, instead of one for each length of a segment.
  std::vector<int64_t> leaving(nodes, 0);
  for (int node = 0; node < dag.num_nodes(); ++node) {
    for (int edge = dag.EdgeBegin(node); edge < dag.EdgeEnd(node); ++edge) {
      leaving[position[node]] += edge_ns[edge];
    }
  }
  std::vector<int64_t> least(nodes + 1, 0);  // F of Celeritas
  std::vector<int> preceding(nodes + 1, 0);  // bp
  GrowingSegment segment(rules, nodes == 0 ? 0 : rules.devices.size() / nodes);
  for (size_t end = 1; end <= nodes; ++end) {
    const int last = order[end - 1];
    // An edge into the last node of the segment no longer leaves it, wherever the segment begins.
    const std::span<const int> sources = dag.predecessors[last];
    const std::span<const int> edges = dag.IncomingEdges(last);
    for (size_t index = 0; index < edges.size(); ++index) {
      leaving[position[sources[index]]] -= edge_ns[edges[index]];
    }
    least[end] = std::numeric_limits<int64_t>::max();
    int64_t weight = 0;
    for (size_t begin = end; begin-- > 0;) {
      if (begin + 1 == end) {
        segment.Begin(last);
      } else if (!segment.Grow(order[begin])) {
        break;
      }
      weight += leaving[begin];
      if (least[begin] + weight <= least[end]) {
        least[end] = least[begin] + weight;
        preceding[end] = static_cast<int>(begin);
      }
    }
  }
  Segments segments;
  for (size_t end = nodes; end > 0;) {
    end = static_cast<size_t>(preceding[end]);
    segments.starts.push_back(static_cast<int>(end));
  }
  std::ranges::reverse(segments.starts);
  segments.cut_ns = least[nodes];
  return segments;
}

}  // namespace heteroplace::graph
