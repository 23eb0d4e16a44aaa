// nano's tokens: one for each character it knows, and two special ones.
export class Vocabulary {
  // `entries`: token -> id, from tokenizer.json; `end`: the id of the end token.
  constructor(entries, end) {
    this.ids = new Map(Object.entries(entries));
    this.tokens = Object.entries(entries).sort(([, one], [, other]) => one - other).map(([token]) => token);
    this.end = end;
    this.characters = this.tokens.filter((token) => token.length === 1).join("");
  }

  encode(text) {
    return [...text].map((character) => {
      const id = this.ids.get(character);
      if (id === undefined) throw new Error(`text: the model does not know ${JSON.stringify(character)}; it knows ${this.characters}`);
      return id;
    });
  }

  decode(ids) {
    return ids.map((id) => this.tokens[id]).join("");
  }
}
