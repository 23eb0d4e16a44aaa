// The card: a picture of a game on a canvas, legible as a thumbnail. Always light.
import { plural, signed } from "../format.js";

export const CARD = { width: 1200, height: 630 };
const LEFT = 64;
const COLOURS = ["ground", "surface", "line-strong", "ink", "ink-soft", "above", "below", "above-ink", "below-ink", "good"];

// Colours and typefaces of the design system, in the light theme.
function palette() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const computed = (name, value) => {
    probe.style.setProperty(name, value);
    return getComputedStyle(probe).getPropertyValue(name);
  };
  computed("color-scheme", "light");
  const found = Object.fromEntries(COLOURS.map((name) => [name, computed("color", `var(--${name})`)]));
  const faces = { mono: computed("font-family", "var(--mono)"), text: computed("font-family", "var(--font)") };
  probe.remove();
  return { ...found, faces };
}

const ofSign = (tone, value, name) => (value > 0 ? tone[`above${name}`] : value < 0 ? tone[`below${name}`] : tone["ink-soft"]);

export function drawCard(canvas, card) {
  const paint = canvas.getContext("2d");
  const tone = palette();
  // Writes from x on, and returns where the text ends.
  const write = (text, x, y, size, { colour = tone.ink, weight = 500, face = "text" } = {}) => {
    paint.font = `${weight} ${size}px ${tone.faces[face]}`;
    paint.fillStyle = colour;
    paint.fillText(text, x, y);
    return x + paint.measureText(text).width;
  };
  paint.fillStyle = tone.ground;
  paint.fillRect(0, 0, CARD.width, CARD.height);
  drawText(write, card, tone);
  drawRows(paint, write, card, tone);
}

function drawText(write, card, tone) {
  const soft = { colour: tone["ink-soft"] };
  const asked = write(`${card.prompt.slice(0, -1).replaceAll("+", " + ")} = `, LEFT, 116, 46, { face: "mono", weight: 600 });
  write(String(card.sum), asked, 116, 46, { face: "mono", weight: 600, colour: tone.good });
  write(card.role === "grader" ? "I graded the group." : "I joined the group.", LEFT, 188, 34, soft);
  write(card.text, LEFT, 286, 60, { face: "mono", weight: 700 });
  const label = write("advantage ", LEFT, 334, 32, soft);
  const value = write(signed(card.advantage), label, 334, 32, { weight: 700, colour: ofSign(tone, card.advantage, "-ink") });
  write(card.rounds > 1 ? ` in round ${card.rounds}` : "", value, 334, 32, soft);
  const size = card.chances.join("").length > 14 ? 44 : 64;
  const [from, to] = card.chances;
  const before = write(from === to ? "stays " : `${from} → `, LEFT, 430, size);
  write(to, before, 430, size, { weight: 700, colour: ofSign(tone, card.way, "-ink") });
  write(`probability over ${plural(card.rounds, "round")}`, LEFT, 474, 28, soft);
  const first = card.rounds > 1 ? `${card.right[0]} in round 1, ` : "";
  write(`nano right: ${first}${card.right.at(-1)} in round ${card.rounds}`, LEFT, 528, 28, soft);
  write(`GRPO · ${plural(card.rounds, "round")} with a real model`, LEFT, 582, 28, soft);
}

function drawRows(paint, write, card, tone) {
  const [left, middle, half, height] = [712, 1010, 140, 60];
  const widest = Math.max(1.75, ...card.rows.map(({ advantage }) => Math.abs(advantage)));
  const box = (x, y, width, tall, colour) => {
    paint.fillStyle = colour;
    paint.fillRect(x, y, width, tall);
  };
  write(`round ${card.rounds}`, left, 76, 26, { colour: tone["ink-soft"] });
  card.rows.forEach(({ text, correct, advantage, chosen }, row) => {
    const y = 96 + row * height;
    if (chosen) box(left - 24, y + 2, CARD.width - left - 16, height - 4, tone.surface);
    if (chosen) box(left - 24, y + 2, 6, height - 4, tone.ink);
    write(text.slice(0, 11), left, y + 41, 28, { face: "mono", weight: chosen ? 700 : 500, colour: correct ? tone.good : tone.ink });
    box(middle, y + 12, (half * advantage) / widest, height - 24, ofSign(tone, advantage, ""));
  });
  box(middle - 1, 92, 2, 8 * height + 8, tone["line-strong"]);
}
