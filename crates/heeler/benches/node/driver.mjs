// A minimal driver of agents, written as a user would write it for Node.js: starts each agent, sends
// it the prompt, makes rows of what it says as herdctl does, and appends each row with appendFile.
// It keeps no session log, takes no lock, syncs nothing and watches no process tree.
//
//   node driver.mjs JOBS.json    [{program, args, env, cwd, input, script?, log}, …], all at once
//
// `input` is what the agent is told; its standard input is closed after its result. `script` is a file
// that it gets as descriptor 3. Prints how many rows were written.
import { spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { appendFile, readFile } from "node:fs/promises";
import { createInterface } from "node:readline";

/** The rows of one message, in the form of a herdctl job log. */
function rows(message) {
  const timestamp = new Date().toISOString();
  switch (message.type) {
    case "system":
      return [{ type: "system", timestamp, subtype: message.subtype, content: message.content }];
    case "assistant":
      return message.message.content.flatMap((block) => {
        if (block.type === "text") {
          return [{ type: "assistant", timestamp, content: block.text, usage: message.message.usage }];
        }
        if (block.type === "tool_use") {
          const { id, name, input } = block;
          return [{ type: "tool_use", timestamp, tool_use_id: id, tool_name: name, input }];
        }
        return [];
      });
    case "user":
      if (!Array.isArray(message.message.content)) return [];
      return message.message.content
        .filter((block) => block.type === "tool_result")
        .map(({ tool_use_id, content, is_error }) => (
          { type: "tool_result", timestamp, tool_use_id, result: content, success: !is_error }
        ));
    case "result":
      return [{ type: "system", timestamp, subtype: "result", content: message.result }];
    default:
      return [];
  }
}

async function drive({ program, args, env, cwd, input, script, log }) {
  const stdio = ["pipe", "pipe", "inherit"];
  if (script) stdio.push(openSync(script, "r"));
  const agent = spawn(program, args, { env, cwd, stdio });
  if (script) closeSync(stdio[3]);
  const exited = new Promise((resolve) => agent.once("close", resolve));
  agent.stdin.on("error", () => {}); // It may have ended already.
  agent.stdin.write(input);
  let written = 0;
  for await (const line of createInterface({ input: agent.stdout, crlfDelay: Infinity })) {
    if (!line) continue;
    let message;
    try {
      message = JSON.parse(line);
    } catch {
      continue;
    }
    for (const row of rows(message)) {
      await appendFile(log, JSON.stringify(row) + "\n");
      written++;
    }
    if (message.type === "result") agent.stdin.end();
  }
  await exited;
  return written;
}

const jobs = JSON.parse(await readFile(process.argv[2], "utf8"));
const written = await Promise.all(jobs.map(drive));
console.log(written.reduce((sum, rows) => sum + rows, 0));
