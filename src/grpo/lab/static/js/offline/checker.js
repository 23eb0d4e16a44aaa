// The answer checker for texts with plain numbers: grpo.tasks.checkers.answers in JavaScript, tested against it.
// Units, fractions, formulas, numbers in words: undefined, since only the checker in Python reads them.

const DIGITS = "\\d{1,3}(?:,\\d{3})+(?:\\.\\d+)?|\\d+(?:\\.\\d+)?";
const SIMPLE = new RegExp(`^[+-]?(?:${DIGITS})$`);
const IN_TEXT = new RegExp(DIGITS, "g");
const SENTENCE = /\banswers?\b(?:[^\n.:=]{0,60}?\b(?:is|are|was|be)\b|[^\n.:=\w]{0,10}(?=[:=]))\W{0,3}?[:=]?/gi;
const SENTENCE_END = /\.(?=\s|\*|$)|\n|(?<=[^\\])\s(?:because|since|as)\s|<[/|]?[A-Za-z][^<>\n]{0,30}>/;
const BOX = /\\boxed\{([^{}\\]{1,40})\}/g;
// Words that may follow a number and are no unit, and short words that are no unit either.
const FOLLOWING = [
  "is are was be and or then so plus minus times makes make gives equals because since which the that right wrong",
  "correct answer answers for as but i my it he to of",
].flatMap((words) => words.split(" "));
const NO_NOUN = "or and to by mod base over times plus minus pi sqrt sin cos tan log ln exp not factorial".split(" ");
const JOINING = "a an in per of us".split(" ");
const NUMBER_WORDS = new RegExp(
  `\\b(?:${[
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\\w+teen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety",
    "hundreds?|thousands?|millions?|billions?|\\w*illions?|dozens?|half|halves|thirds?|quarters?|\\w+ths?|minus|negative|lakh|crore|mod",
    "modulo|base|squared|cubed|percent|cents?|dollars?",
  ].join("|")})\\b`,
  "i",
);

const valueOf = (written) => Number(written.replaceAll(",", ""));
const stripped = (written) => written.replaceAll("**", "").trim().replace(/[.;,:]+$/, "").trim();
const wordsOf = (written) => written.match(/[A-Za-z]+/g) ?? [];

// Whether the text is plain enough for this checker.
function isPlain(written) {
  const rest = written.replace(BOX, (_, inside) => inside).replaceAll("</answer>", " ").replaceAll("<answer>", " ");
  if (!/^[\w\s+*/×÷=().,;:!?'"#-]*$/.test(rest) ||
    /[_]|[A-Za-z]\d|\d[A-Za-z]|\d\s*\/|\.\d|\d,\d(?!\d\d(?!\d))|\d \d|[×*]\s*10/.test(rest.replace(/(?<=\d)\.(?=\d)/g, "")) ||
    NUMBER_WORDS.test(rest)) return false;
  if (/(?<!^\s*)-\s?\d|\d-/.test(rest)) return false;
  return [...rest.matchAll(/\d[.,!?;:)'"]*\s+([A-Za-z]+)/g)].every(([, word]) => FOLLOWING.includes(word.toLowerCase()));
}

// [where, form, candidate] of every explicit answer, the last first.
function explicit(written) {
  const found = [...written.matchAll(BOX)].map((box) => [box.index, "box", box[1].trim()]);
  for (const hashes of written.matchAll(/####[ \t]*([^\n#]{1,400})/g)) found.push([hashes.index, "hashes", hashes[1].trim()]);
  for (const tag of written.matchAll(/<answer>/g)) {
    const [inside, closed] = written.slice(tag.index + 8).split("</answer>");
    if (closed !== undefined) found.push([tag.index, "tag", inside.trim()]);
  }
  for (const start of written.matchAll(SENTENCE)) {
    const rest = written.slice(start.index + start[0].length).slice(0, 400).replace(/^[ *:=\n]+/, "");
    found.push([start.index, "sentence", rest.split(SENTENCE_END)[0].replace(/^[ *]+|[ *]+$/g, "")]);
  }
  return found.sort((one, other) => other[0] - one[0]).map(([, form, candidate]) => [form, candidate]);
}

// The value of a text that is a number, or a number with a noun; null for any other.
function readNumber(written) {
  const bare = stripped(written);
  if (SIMPLE.test(bare)) return valueOf(bare);
  const [, number, tail] = bare.match(new RegExp(`^([+-]?(?:${DIGITS}))[ ]?([A-Za-z'.()\\- ]+)$`)) ?? [];
  const words = wordsOf(tail ?? "").map((word) => word.toLowerCase()).filter((word) => !JOINING.includes(word));
  return words.length && words.every((word) => word.length > 2 && !NO_NOUN.includes(word)) ? valueOf(number) : null;
}

const isProse = (candidate, form) => (candidate.match(/\b[A-Za-z]{2,}\b/g) ?? []).length >= (form === "bare" ? 1 : 2);

// { right, why }; null: not an answer; undefined: not for this checker.
function compare(candidate, gold, form) {
  if ((candidate.match(/=/g) ?? []).length > 1) return undefined;
  const numbers = candidate.match(IN_TEXT) ?? [];
  let given = readNumber(candidate) ?? (candidate.includes("=") ? readNumber(candidate.split("=")[1]) : null);
  if (given === null && ["sentence", "hashes", "tag"].includes(form) && isProse(candidate, form) && numbers.length === 1) given = valueOf(numbers[0]);
  if (given !== null) return given === gold ? { right: true, why: "same number" } : { right: false, why: "other number" };
  if (form !== "bare" && /\d[^\d=]*\b(?:or|and)\b[^\d=]*\d/.test(candidate)) return { right: false, why: "several numbers" };
  return !numbers.length || isProse(candidate, form) ? null : undefined;
}

// As the server's verdict, for a gold answer that is a plain number; undefined where only Python can tell.
export function check(written, gold) {
  if (!SIMPLE.test(gold) || written.length > 2000 || !isPlain(written)) return undefined;
  for (const [form, candidate] of [...explicit(written), ["bare", written.trim()]]) {
    if (!candidate || candidate.length > 400) continue;
    const outcome = compare(candidate, valueOf(gold), form);
    if (outcome === undefined) return undefined;
    if (outcome) return { ...outcome, strict: outcome.right, extracted: candidate, form };
  }
  const last = (written.match(IN_TEXT) ?? []).at(-1);
  if (last === undefined) return { right: false, strict: false, extracted: "", form: "", why: "no answer found" };
  const right = valueOf(last) === valueOf(gold);
  return { right, strict: false, extracted: last, form: "last number", why: right ? "same number" : "other number" };
}
