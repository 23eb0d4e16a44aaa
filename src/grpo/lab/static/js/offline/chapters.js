// Chapters' answers computed in the page: ANSWERS[slug][key] = (params: URLSearchParams) => answer, as the server's.
export const ANSWERS = {};
