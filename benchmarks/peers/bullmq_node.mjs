// Benchmark of BullMQ on Node, with its fastest documented calls. Same requests and output as base.py.
import { createRequire } from 'node:module';
import { performance } from 'node:perf_hooks';
import { readFileSync } from 'node:fs';

const require = createRequire(process.env.BENCH_MODULES + '/');
const { Queue, Worker } = require('bullmq');
const request = JSON.parse(process.argv[2]);
const address = new URL(request.url);
const connection = { host: address.hostname, port: Number(address.port), maxRetriesPerRequest: null };
const queue = new Queue('bench', { connection });
const options = { removeOnComplete: true, attempts: 3 };
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const now = () => performance.timeOrigin + performance.now();
const requireInTime = (step) => {
  if (Date.now() > (request.due_ms ?? Infinity)) throw new Error(`${step} took too long`);
};
const printJson = (value) => console.log(JSON.stringify(value));

const payload = (n) => ({
  n, customer: n, email: `customer${n}@example.org`, locale: 'de-DE',
  template: 'newsletter-2026-11', tags: ['weekly', 'paying'], score: n / 7,
});
const payloads = (count) => Array.from({ length: count }, (_, n) => payload(n));

async function addBulk(jobs, extra = {}) {
  for (let i = 0; i < jobs.length; i += 1000) {
    const chunk = jobs.slice(i, i + 1000);
    await queue.addBulk(chunk.map((data) => ({ name: 'work', data, opts: { ...options, ...extra } })));
  }
}

async function timed(work) {
  const started = performance.now();
  await work();
  return { seconds: (performance.now() - started) / 1000 };
}

async function remaining() {
  const counts = await queue.getJobCounts('wait', 'active', 'delayed');
  return counts.wait + counts.active + counts.delayed;
}

async function consume(retry) {
  const calls = request.n * (retry ? 2 : 1);
  const failed = new Set();
  let count = 0, first = 0;
  requireInTime('starting');
  new Worker('bench', async (job) => {
    if (++count === 1) first = performance.now();
    if (retry && !failed.has(job.data.n)) {
      failed.add(job.data.n);
      throw new Error('injected failure of the first attempt');
    }
  }, { connection, concurrency: request.concurrency ?? 100 });
  while (count < calls) await sleep(2);
  while (await remaining()) await sleep(2);
  const seconds = request.due_ms ? (Date.now() - request.due_ms) / 1000 : (performance.now() - first) / 1000;
  const rss = /VmRSS:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'));
  return { seconds, rss_kb: Number(rss[1]) };
}

async function latency() {
  const latencies = [];
  const worker = new Worker('bench', async (job) => { latencies.push(now() - job.data.at * 1000); },
    { connection, concurrency: 100 });
  await worker.waitUntilReady();
  await sleep(500);
  printJson({ ready: true });
  while (latencies.length < request.n) await sleep(2);
  latencies.sort((a, b) => a - b);
  const at = (part) => latencies[Math.min(latencies.length - 1, Math.floor(part * latencies.length))];
  return { p50_ms: at(0.5), p99_ms: at(0.99), worst_ms: latencies[latencies.length - 1] };
}

const actions = {
  async add() {
    const jobs = payloads(request.n);
    for (const job of jobs.slice(0, 20)) await queue.add('work', job, options);
    return timed(async () => { for (const job of jobs) await queue.add('work', job, options); });
  },
  async bulk() { const jobs = payloads(request.n); return timed(() => addBulk(jobs)); },
  async fill() {
    const delay = request.due_ms ? { delay: Math.max(0, request.due_ms - Date.now()) } : {};
    await addBulk(payloads(request.n), delay);
    requireInTime('adding');
    return {};
  },
  consume: () => consume(false),
  retry: () => consume(true),
  latency,
  async pace() {
    const started = performance.now();
    for (let n = 0; n < request.n; n++) {
      const wait = started + (n * 1000) / request.rate - performance.now();
      if (wait > 0) await sleep(wait);
      await queue.add('work', { ...payload(n), at: now() / 1000 }, options);
    }
    return { rate: (request.n * 1000) / (performance.now() - started) };
  },
};

try {
  printJson(await actions[request.action]());
  process.exit(0);
} catch (error) {
  console.error(String(error));
  process.exit(1);
}
