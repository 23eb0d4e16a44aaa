// Position in the scene: a round and one of five phases. It plays, or stands where the address says.
import { useEffect, useRef, useState } from "preact/hooks";
import { setQuery } from "../route.js";

export const PHASES = ["sample", "score", "compare", "push", "update"];
export const LAST_ROUND = 12;
const PLAYED = 3; // rounds that play by themselves
const SECONDS = [2.6, 1.6, 2.0, 2.0, 2.4]; // of each phase, in the first round
const LATER = 0.75; // of that, in later rounds

const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
// Without motion it stands at the end of a round.
const first = () => ({ round: 1, phase: still() ? PHASES.length - 1 : 0 });
export const secondsOf = ({ round, phase }) => SECONDS[phase] * (round > 1 ? LATER : 1);

function given(query) {
  const phase = PHASES.indexOf(query.get("phase"));
  if (phase < 0) return null;
  const round = Number(query.get("round") ?? 1);
  return { round: Number.isInteger(round) && round >= 1 && round <= LAST_ROUND ? round : 1, phase };
}

function moved({ round, phase }, by) {
  const place = Math.max(0, Math.min(LAST_ROUND * PHASES.length - 1, (round - 1) * PHASES.length + phase + by));
  return { round: Math.floor(place / PHASES.length) + 1, phase: place % PHASES.length };
}

// { round, phase, playing, show, step, play, restart, end, setPosition, stop }.
export function usePlayer(query) {
  const asked = given(query);
  const [position, setPosition] = useState(asked ?? first());
  const [playing, setPlaying] = useState(!asked && !still());
  const [end, setEnd] = useState(PLAYED);
  const arrived = useRef(false);
  useEffect(() => {
    if (asked || arrived.current) {
      setPosition(asked ?? first());
      setPlaying(!asked && !still());
    }
    arrived.current = true;
  }, [asked?.round, asked?.phase]);

  // Keys can be pressed faster than the page is drawn.
  const latest = useRef(position);
  latest.current = position;

  // Stands there, with these other changes of the address.
  function show(to, changes = {}) {
    latest.current = to;
    setPlaying(false);
    setPosition(to);
    setQuery({ ...changes, round: to.round === 1 ? undefined : to.round, phase: PHASES[to.phase] });
  }
  function play() {
    if (playing) return show(position);
    const isDone = position.phase === PHASES.length - 1;
    if (isDone) setPosition(moved(position, 1));
    if (isDone && position.round >= end) setEnd(Math.min(LAST_ROUND, position.round + PLAYED));
    setPlaying(true);
  }
  // Plays from the first round, with these changes of the address.
  function restart(changes) {
    setQuery({ ...changes, round: undefined, phase: undefined });
    setPosition(first());
    setEnd(PLAYED);
    setPlaying(!still());
  }
  return { ...position, playing, end, show, play, restart, step: (by) => show(moved(latest.current, by)), setPosition, stop: () => setPlaying(false) };
}

// Moves a playing scene on, once its phase is computed.
export function useClock({ round, phase, playing, end, setPosition, stop }, ready) {
  const atEnd = phase === PHASES.length - 1 && round >= end;
  useEffect(() => {
    if (!playing || !ready) return;
    const timer = setTimeout(() => (atEnd ? stop() : setPosition(moved({ round, phase }, 1))), 1000 * secondsOf({ round, phase }));
    return () => clearTimeout(timer);
  }, [playing, ready, round, phase, atEnd]);
}

// Space plays and pauses, the arrow keys move by a phase; not while a control uses these keys.
export function usePlayerKeys({ play, step }) {
  useEffect(() => {
    const press = (event) => {
      if (event.metaKey || event.ctrlKey || event.altKey || event.target.closest?.("input, textarea, select")) return;
      if (event.key === " " && !event.target.closest?.("button, a, summary, [role=button]")) play();
      else if (event.key === "ArrowRight") step(1);
      else if (event.key === "ArrowLeft") step(-1);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
}
