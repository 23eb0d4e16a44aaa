// Problems whose groups were recorded with a critic's values, for pages without a server.
// Equal to `PROBLEMS` of grpo.lab.site.questions.
export const PROBLEMS = ["37+85+46=", "58+27+94=", "66+39+71="];
