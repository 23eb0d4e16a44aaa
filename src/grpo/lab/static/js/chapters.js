// The chapters in reading order, and links between them.
export const CHAPTERS = [
  {
    slug: "why", short: "Why", number: 1, title: "Why learn from rewards", lead: "The limits of imitation, and what checked answers add.",
    gist: "A model can learn from its own answers if a program can tell which are right. Better answers become more likely.",
  },
  {
    slug: "group", short: "Group", number: 2, title: "The group", lead: "Sample many answers to one question and compare them.",
    gist: "Several answers to one question measure how hard it is. If all get the same reward, there is nothing to learn.",
  },
  {
    slug: "advantage", short: "Advantage", number: 3, title: "The advantage",
    lead: "How much better an answer is than its group, and the effect of each baseline.",
    gist: "The advantage is how far an answer's reward lies above or below its group's average.",
  },
  {
    slug: "loss", short: "Loss", number: 4, title: "The loss", lead: "From advantages to a push on every token: ratio, clip and KL penalty.",
    gist: "Every token of an answer is pushed by the answer's advantage. The clip and the reference keep the model from moving too far.",
  },
  {
    slug: "credit", short: "Credit", number: 5, title: "Credit and rewards", lead: "Which token earned the reward, and what happens if the reward is wrong.",
    gist: "All tokens of an answer share its advantage, and the model learns what the reward pays for.",
  },
  {
    slug: "costs", short: "Costs", number: 6, title: "Costs and family", lead: "The memory of a critic, and how the algorithms are related.",
    gist: "GRPO saves the memory of a critic and pays for it with more sampling.",
  },
  {
    slug: "train", short: "Training", number: 7, title: "Training",
    lead: "Training runs with several seeds: settings, comparisons, and a clinic for faulty runs.",
    gist: "Settings matter in runs: compare seeds, and look at groups before you trust a curve.",
  },
  {
    slug: "turns", short: "Turns", number: 8, title: "Several turns",
    lead: "Completions that read answers in between: which tokens are trained, and a model that discovers bisection.",
    gist: "What the model reads between its turns is never trained on, only what it wrote.",
  },
];
export const EXTRA = {
  slug: "notation", short: "Notation", title: "Notation and prerequisites", lead: "Prerequisites, and every symbol with its name in the code.",
};

// Each pair links both ways: [a, b, text of the link from a to b, text of the link from b to a].
const PAIRS = [
  ["why", "train", "Train the loop yourself", "The idea behind the loop"],
  ["why", "credit", "What a reward cannot see", "Which tasks have a reward"],
  ["group", "advantage", "From a group's rewards to advantages", "Where the rewards of a group come from"],
  ["group", "costs", "The cost of a large group", "The benefit of a large group"],
  ["group", "train", "Group size in training runs", "Why a group with equal rewards has no signal"],
  ["advantage", "loss", "From an advantage to the push on a token", "Where the advantage comes from"],
  ["advantage", "credit", "One advantage per token?", "How the advantage of a completion is computed"],
  ["advantage", "costs", "Which algorithm uses which baseline", "Exact bias and variance of each baseline"],
  ["loss", "train", "β and ε in training runs", "The effect of β and ε on one token"],
  ["loss", "credit", "Which token gets the credit", "How hard each token is pushed"],
  ["credit", "train", "Runs that went wrong", "How a reward is gamed"],
  ["credit", "turns", "Credit over several turns", "Which token earned the reward"],
  ["train", "turns", "A run with several turns", "Runs with single answers"],
  ["costs", "train", "Measured training", "Predicted memory and compute"],
  ...CHAPTERS.map(({ slug, title }) => ["notation", slug, title, "Symbols and prerequisites"]),
];

export const chapterOf = (slug) => [...CHAPTERS, EXTRA].find((chapter) => chapter.slug === slug);
export const seeAlso = (slug) =>
  PAIRS.flatMap(([a, b, fromA, fromB]) => (a === slug ? [[b, fromA]] : b === slug ? [[a, fromB]] : []));
