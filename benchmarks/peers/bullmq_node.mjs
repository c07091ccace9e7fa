// BullMQ on Node, by its fastest documented calls: the same orders and answers as stage.py.
import { createRequire } from 'node:module';
import { performance } from 'node:perf_hooks';
import { readFileSync } from 'node:fs';

const require = createRequire(process.env.BENCH_MODULES + '/');
const { Queue, Worker } = require('bullmq');
const order = JSON.parse(process.argv[2]);
const place = new URL(order.url);
const connection = { host: place.hostname, port: Number(place.port), maxRetriesPerRequest: null };
const queue = new Queue('bench', { connection });
const options = { removeOnComplete: true, attempts: 3 };
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const now = () => performance.timeOrigin + performance.now();
const inTime = (what) => {
  if (Date.now() > (order.due_ms ?? Infinity)) throw new Error(`${what} took too long`);
};
const say = (what) => console.log(JSON.stringify(what));

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
  const began = performance.now();
  await work();
  return { seconds: (performance.now() - began) / 1000 };
}

async function left() {
  const counts = await queue.getJobCounts('wait', 'active', 'delayed');
  return counts.wait + counts.active + counts.delayed;
}

async function consume(retry) {
  const calls = order.n * (retry ? 2 : 1);
  const failed = new Set();
  let count = 0, first = 0;
  inTime('starting');
  new Worker('bench', async (job) => {
    if (++count === 1) first = performance.now();
    if (retry && !failed.has(job.data.n)) {
      failed.add(job.data.n);
      throw new Error('the first time it fails');
    }
  }, { connection, concurrency: order.concurrency ?? 100 });
  while (count < calls) await sleep(2);
  while (await left()) await sleep(2);
  const seconds = order.due_ms ? (Date.now() - order.due_ms) / 1000 : (performance.now() - first) / 1000;
  const rss = /VmRSS:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'));
  return { seconds, rss_kb: Number(rss[1]) };
}

async function latency() {
  const waits = [];
  const worker = new Worker('bench', async (job) => { waits.push(now() - job.data.at * 1000); },
    { connection, concurrency: 100 });
  await worker.waitUntilReady();
  await sleep(500);
  say({ ready: true });
  while (waits.length < order.n) await sleep(2);
  waits.sort((a, b) => a - b);
  const at = (part) => waits[Math.min(waits.length - 1, Math.floor(part * waits.length))];
  return { p50_ms: at(0.5), p99_ms: at(0.99), worst_ms: waits[waits.length - 1] };
}

const orders = {
  async add() {
    const jobs = payloads(order.n);
    for (const job of jobs.slice(0, 20)) await queue.add('work', job, options);
    return timed(async () => { for (const job of jobs) await queue.add('work', job, options); });
  },
  async bulk() { const jobs = payloads(order.n); return timed(() => addBulk(jobs)); },
  async fill() {
    const delay = order.due_ms ? { delay: Math.max(0, order.due_ms - Date.now()) } : {};
    await addBulk(payloads(order.n), delay);
    inTime('filling');
    return {};
  },
  consume: () => consume(false),
  retry: () => consume(true),
  latency,
  async pace() {
    const began = performance.now();
    for (let n = 0; n < order.n; n++) {
      const wait = began + (n * 1000) / order.rate - performance.now();
      if (wait > 0) await sleep(wait);
      await queue.add('work', { ...payload(n), at: now() / 1000 }, options);
    }
    return { rate: (order.n * 1000) / (performance.now() - began) };
  },
};

try {
  say(await orders[order.do]());
  process.exit(0);
} catch (error) {
  console.error(String(error));
  process.exit(1);
}
