// The chapters in reading order, and which of them belong together.
export const CHAPTERS = [
  { slug: "why", short: "Why", number: 1, title: "Why learn from rewards", lead: "Where imitation ends, and what a checked answer can teach." },
  { slug: "group", short: "Group", number: 2, title: "The group", lead: "Ask the same question many times: the answers grade each other." },
  { slug: "advantage", short: "Advantage", number: 3, title: "The advantage", lead: "How much better than its siblings an answer did, and why that is all that counts." },
  { slug: "loss", short: "Loss", number: 4, title: "The loss", lead: "From advantages to a push on every token: ratio, clip and leash." },
  { slug: "credit", short: "Credit", number: 5, title: "Credit and rewards", lead: "Which token earned it, and what happens when the reward is wrong." },
  { slug: "costs", short: "Costs", number: 6, title: "Costs and family", lead: "What a critic costs in memory, and who is related to whom." },
  { slug: "train", short: "Training", number: 7, title: "Training", lead: "Real runs, several seeds each: knobs, comparisons, and a clinic for sick ones." },
];
export const EXTRA = { slug: "notation", short: "Notation", title: "Notation and prerequisites", lead: "Every symbol, what it is called in the code, and what to know beforehand." };

// Both ways: each of the two chapters links to the other, with a reason of its own.
const PAIRS = [
  ["why", "train", "Train the loop yourself", "Where the loop comes from"],
  ["why", "credit", "What a reward cannot see", "Which tasks have a reward at all"],
  ["group", "advantage", "What the group's rewards become", "Where the rewards of a group come from"],
  ["group", "costs", "What a large group costs", "What a large group buys"],
  ["group", "train", "Group size in real runs", "Why a group without spread teaches nothing"],
  ["advantage", "loss", "What a token makes of its advantage", "Where the advantage comes from"],
  ["advantage", "credit", "One advantage for every token?", "How the advantage of a completion is made"],
  ["advantage", "costs", "Which relative uses which baseline", "Bias and variance of each baseline, exactly"],
  ["loss", "train", "β and ε in real runs", "What β and ε do to a single token"],
  ["loss", "credit", "Who gets the push", "How hard each token is pushed"],
  ["credit", "train", "Runs that went wrong", "How a reward is gamed"],
  ["costs", "train", "What it costs, measured", "What it costs, predicted"],
  ...CHAPTERS.map(({ slug, title }) => ["notation", slug, title, "Symbols and prerequisites"]),
];

export const chapterOf = (slug) => [...CHAPTERS, EXTRA].find((chapter) => chapter.slug === slug);
export const seeAlso = (slug) =>
  PAIRS.flatMap(([a, b, fromA, fromB]) => (a === slug ? [[b, fromA]] : b === slug ? [[a, fromB]] : []));
