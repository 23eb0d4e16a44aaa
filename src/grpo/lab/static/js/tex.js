// Formulas. KaTeX builds the nodes (no markup passes through the page) and adds MathML for screen readers.
import { html } from "htm/preact";
import { useEffect, useRef } from "preact/hooks";
import { loadKatex } from "./load.js";

export function Tex({ children, block = false }) {
  const box = useRef(null);
  const text = [children].flat().join("");
  useEffect(() => {
    loadKatex().then((katex) => box.current && katex.render(block ? `\\displaystyle ${text}` : text, box.current, { throwOnError: false }));
  }, [text, block]);
  return html`<span class=${block ? "tex-block" : "tex"} ref=${box}></span>`;
}

// A number inside a formula; negative ones in parentheses where they follow a sign.
export const value = (number, digits = 4) => {
  if (number === null || number === undefined) return "\\text{–}";
  const [mantissa, exponent] = String(Number(number.toPrecision(digits))).split("e");
  if (exponent === undefined && (number === 0 || Math.abs(number) >= 1e-4)) return mantissa;
  const [digitsOf, power] = number.toExponential(Math.min(3, digits - 1)).split("e");
  return `${digitsOf}\\cdot10^{${Number(power)}}`;
};
export const braced = (number, digits) => (number < 0 ? `(${value(number, digits)})` : value(number, digits));
