// Calls of QStash's client for Node, one JSON line each: {"call": "messages.get", "args": ["…"], "of": {"queueName": "q"}}.
// Answers with {"value": …} or {"error": {"name", "message", "status"}}. Run as: node driver.mjs <directory of node_modules>
import { createInterface } from "node:readline";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const { Client, Receiver } = await import(pathToFileURL(resolve(process.argv[2], "@upstash/qstash/index.mjs")).href);

// What the client prints about failures is not an answer.
console.warn = console.error = () => {};

function target(name, of) {
  if (name === "receiver.verify") return [new Receiver(of), "verify"];
  const client = new Client({ retry: false, ...of?.config });
  const parts = name.split(".");
  const method = parts.pop();
  if (parts[0] === "queue") return [client.queue(of?.queueName ? { queueName: of.queueName } : undefined), method];
  return [parts.reduce((found, part) => found[part], client), method];
}

for await (const line of createInterface({ input: process.stdin })) {
  const { call, args = [], of } = JSON.parse(line);
  let answer;
  try {
    const [object, method] = target(call, of);
    answer = { value: (await object[method](...args)) ?? null };
  } catch (error) {
    answer = { error: { name: error.name, message: error.message, status: error.status ?? null } };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
