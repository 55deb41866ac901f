// Reads a slice of a JSONL file by line number, from the front. Prints the best seconds per call.
import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";
const [, , path, from, count, rounds] = process.argv;
let best = Infinity;
for (let i = 0; i < Number(rounds); i++) {
  const start = process.hrtime.bigint();
  const rows = [];
  let at = 0;
  const input = createReadStream(path);
  for await (const line of createInterface({ input, crlfDelay: Infinity })) {
    if (at++ >= Number(from)) rows.push(JSON.parse(line));
    if (rows.length === Number(count)) break;
  }
  input.destroy();
  best = Math.min(best, Number(process.hrtime.bigint() - start) / 1e9);
}
console.log(best);
