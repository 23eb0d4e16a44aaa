// A curve that falls to 0 at an edge, with both ends of the fall at exactly that edge. Left and right of it `push` is 0
// or proportional to `at`, as the push of a clipped token is to its ratio.
export function cliff(at, push, edges) {
  const points = at.map((one, place) => ({ at: one, push: push[place] }));
  return points.flatMap((point, place) => {
    const next = points[place + 1];
    const edge = next && (point.push === 0) !== (next.push === 0) && edges.find((one) => point.at <= one && one <= next.at);
    if (!edge) return [point];
    const height = (one) => (one.push / one.at) * edge;
    return [point, { at: edge, push: height(point) }, { at: edge, push: height(next) }];
  });
}
