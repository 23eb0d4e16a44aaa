PRAGMA user_version = 5;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;  -- value: JSON

-- Training. Step k is the k-th batch, from 0. Deleting a row of steps deletes everything recorded in that step.
CREATE TABLE steps (step INTEGER PRIMARY KEY, recorded REAL NOT NULL);  -- seconds since 1970
CREATE TABLE metrics (
  step INTEGER NOT NULL REFERENCES steps ON DELETE CASCADE, name TEXT NOT NULL,
  value REAL,  -- NULL: not finite
  PRIMARY KEY (step, name)) WITHOUT ROWID;
CREATE TABLE spans (  -- a step's phases, one after another; the last ends when the step is recorded
  step INTEGER NOT NULL REFERENCES steps ON DELETE CASCADE, name TEXT NOT NULL,
  start REAL NOT NULL, seconds REAL NOT NULL,
  PRIMARY KEY (step, name)) WITHOUT ROWID;
CREATE TABLE groups (
  step INTEGER NOT NULL REFERENCES steps ON DELETE CASCADE, group_index INTEGER NOT NULL,
  problem_id TEXT NOT NULL, prompt TEXT NOT NULL, answer TEXT NOT NULL, policy_version INTEGER NOT NULL,
  PRIMARY KEY (step, group_index)) WITHOUT ROWID;
CREATE TABLE prompts (  -- as the model reads them, once per problem of groups, eval_groups and probes
  problem_id TEXT PRIMARY KEY,
  place TEXT NOT NULL,  -- file and line of its row; empty: the problem was generated
  text TEXT NOT NULL,   -- the decoded tokens, special ones included
  tokens BLOB NOT NULL  -- little-endian int32
  ) WITHOUT ROWID;
CREATE TABLE completions (
  step INTEGER NOT NULL, group_index INTEGER NOT NULL, sample_index INTEGER NOT NULL,
  text TEXT NOT NULL, length INTEGER NOT NULL, finish TEXT NOT NULL,
  reward REAL, correct INTEGER,  -- correct: 0 or 1; NULL: cannot be judged
  parts TEXT NOT NULL, traits TEXT NOT NULL, extra TEXT NOT NULL,  -- JSON objects; extra: logged with log_extra
  advantage REAL,  -- mean over the tokens
  logprob REAL,    -- the sampler's, summed over the tokens
  why TEXT NOT NULL,  -- error while scoring; empty: none
  PRIMARY KEY (step, group_index, sample_index),
  FOREIGN KEY (step, group_index) REFERENCES groups ON DELETE CASCADE);
CREATE TABLE token_arrays (  -- for a few groups per step; little-endian; tokens int32, the rest float32
  step INTEGER NOT NULL, group_index INTEGER NOT NULL, sample_index INTEGER NOT NULL,
  tokens BLOB NOT NULL, logprobs BLOB NOT NULL, ref_logprobs BLOB, old_logprobs BLOB, advantages BLOB,
  trainer_logprobs BLOB, entropies BLOB, denominator REAL,  -- of the last update on the completion
  observed BLOB, observed_after BLOB,  -- int32: tokens that it read, and how many sampled tokens precede each
  PRIMARY KEY (step, group_index, sample_index),
  FOREIGN KEY (step, group_index) REFERENCES groups ON DELETE CASCADE);
CREATE TABLE turns (  -- of episodes: what the model wrote and what it read, in order, from 0
  step INTEGER NOT NULL, group_index INTEGER NOT NULL, sample_index INTEGER NOT NULL, turn INTEGER NOT NULL,
  who TEXT NOT NULL,  -- model; tool; environment, which may be the task's reply
  text TEXT NOT NULL, tokens INTEGER NOT NULL,
  after INTEGER NOT NULL,  -- sampled tokens that precede it
  calls TEXT NOT NULL,  -- JSON: [{"name": ..., "arguments": ..., "answer": ..., "fault": ...}, ...]
  reward REAL,  -- of a turn of the model; NULL: none of its own
  fault TEXT NOT NULL,  -- of its calls, the first; in the last row of an episode also that of the environment
  PRIMARY KEY (step, group_index, sample_index, turn),
  FOREIGN KEY (step, group_index) REFERENCES groups ON DELETE CASCADE) WITHOUT ROWID;

CREATE TABLE findings (  -- warnings and findings
  recorded REAL NOT NULL, step INTEGER, kind TEXT NOT NULL, text TEXT NOT NULL);

-- Evaluation. Step s: after s batches; 0: before training.
CREATE TABLE evals (step INTEGER PRIMARY KEY, recorded REAL NOT NULL);
CREATE TABLE eval_metrics (
  step INTEGER NOT NULL REFERENCES evals ON DELETE CASCADE, name TEXT NOT NULL, value REAL,
  PRIMARY KEY (step, name)) WITHOUT ROWID;
CREATE TABLE eval_groups (
  step INTEGER NOT NULL REFERENCES evals ON DELETE CASCADE, group_index INTEGER NOT NULL,
  problem_id TEXT NOT NULL, prompt TEXT NOT NULL, answer TEXT NOT NULL, policy_version INTEGER NOT NULL,
  PRIMARY KEY (step, group_index)) WITHOUT ROWID;
CREATE TABLE eval_completions (
  step INTEGER NOT NULL, group_index INTEGER NOT NULL, sample_index INTEGER NOT NULL,
  text TEXT NOT NULL, length INTEGER NOT NULL, finish TEXT NOT NULL,
  reward REAL, correct INTEGER, parts TEXT NOT NULL, traits TEXT NOT NULL, extra TEXT NOT NULL,
  advantage REAL, logprob REAL,
  why TEXT NOT NULL,
  PRIMARY KEY (step, group_index, sample_index),
  FOREIGN KEY (step, group_index) REFERENCES eval_groups ON DELETE CASCADE);
CREATE TABLE eval_turns (
  step INTEGER NOT NULL, group_index INTEGER NOT NULL, sample_index INTEGER NOT NULL, turn INTEGER NOT NULL,
  who TEXT NOT NULL, text TEXT NOT NULL, tokens INTEGER NOT NULL, after INTEGER NOT NULL, calls TEXT NOT NULL,
  reward REAL, fault TEXT NOT NULL,
  PRIMARY KEY (step, group_index, sample_index, turn),
  FOREIGN KEY (step, group_index) REFERENCES eval_groups ON DELETE CASCADE) WITHOUT ROWID;
CREATE TABLE probes (  -- the same pinned problems at each evaluation
  step INTEGER NOT NULL, probe_index INTEGER NOT NULL,
  problem_id TEXT NOT NULL, prompt TEXT NOT NULL, answer TEXT NOT NULL,
  samples TEXT NOT NULL,  -- JSON: [{"text": ..., "reward": ..., "correct": ...}, ...]
  PRIMARY KEY (step, probe_index)) WITHOUT ROWID;
