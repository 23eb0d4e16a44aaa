// The share of right answers in each round, as a line that grows.
import { html } from "htm/preact";

const [WIDTH, HEIGHT, EDGE] = [150, 40, 5];

// `groups`: one of each round, of `size` answers.
export function Share({ groups, size, rounds }) {
  const counts = groups.map((group) => group.filter(({ correct }) => correct).length);
  const x = (place) => EDGE + (place / Math.max(1, rounds - 1)) * (WIDTH - 2 * EDGE);
  const y = (count) => HEIGHT - EDGE - (count / size) * (HEIGHT - 2 * EDGE);
  const points = counts.map((count, place) => `${x(place)},${y(count)}`);
  const last = counts.at(-1);
  return html`<figure class="scene-share">
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" width=${WIDTH} height=${HEIGHT} role="img" aria-label=${`Right answers by round: ${counts.join(", ") || "none yet"}`}>
      <path class="scene-share-axis" d="M0 ${y(0)}H${WIDTH}M0 ${y(size)}H${WIDTH}" />
      <polyline class="scene-share-line" points=${points.join(" ")} />
      ${counts.map((count, place) => html`<circle class="scene-share-dot" cx=${x(place)} cy=${y(count)} r="3.5" />`)}
    </svg>
    <figcaption><b class="num" data-number="right">${last ?? "–"}</b> of ${size} right<small>in round ${Math.max(1, counts.length)}</small></figcaption>
  </figure>`;
}
