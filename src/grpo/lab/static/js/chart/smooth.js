// Exponential smoothing of a chart's lines; the measured line stays faint behind.
import { channelsOf } from "./points.js";

export const SMOOTHED = "smoothed";
// A line of fewer points, such as one of evaluations, stays as it is.
const FEWEST = 12;

// The mean of the values so far, each weighted `weight` times as much as the one after it: unbiased from the first on.
function smoothed(values, weight) {
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (value === null || Number.isNaN(value)) return value;
    [sum, total] = [sum * weight + value, total * weight + 1];
    return sum / total;
  });
}

const isSmoothed = (Plot, mark) => mark instanceof Plot.Line && (mark.strokeOpacity ?? 1) >= 0.5 && channelsOf(mark)("x").length >= FEWEST;

export const canSmooth = (Plot, marks) => marks.some((mark) => isSmoothed(Plot, mark));

export function smoothMarks(Plot, marks, weight) {
  return marks.flatMap((mark) => {
    if (!isSmoothed(Plot, mark)) return [mark];
    const channel = channelsOf(mark);
    const [x, y, z, stroke] = ["x", "y", "z", "stroke"].map(channel);
    const key = z ?? stroke;
    const series = new Map();
    for (let i = 0; i < x.length; i++) {
      if (!series.has(key?.[i])) series.set(key?.[i], []);
      series.get(key?.[i]).push(i);
    }
    const rows = [...series.values()].flatMap((places) => {
      const means = smoothed(places.map((i) => y[i]), weight);
      return places.map((i, place) => ({ x: x[i], y: means[place], z: key?.[i], stroke: stroke?.[i] ?? mark.stroke }));
    });
    mark.strokeOpacity = 0.28;
    return [mark, Plot.lineY(rows, { x: "x", y: "y", z: "z", stroke: "stroke", strokeWidth: Math.max(1.8, mark.strokeWidth ?? 0), ariaLabel: () => SMOOTHED })];
  });
}
