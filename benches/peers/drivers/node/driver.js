// A driver of node-redlock. src/drive/mod.rs describes its input and output.
'use strict';

const fs = require('fs');
const readline = require('readline');
const Redis = require('ioredis');
const Redlock = require('redlock');

const now = () => process.hrtime.bigint();

const sleepUntil = (at) => {
  const left = Number(at - now()) / 1e6;
  return left > 0 ? new Promise((resolve) => setTimeout(resolve, left)) : undefined;
};

// Keeps the core busy if the time is short, and sleeps if it is long.
const work = async (until) => {
  if (until - now() > 100_000n) await sleepUntil(until);
  while (now() < until);
};

class Session {
  static async prepare(given) {
    const session = new Session();
    session.given = given;
    session.client = new Redis(given.url);
    session.client.on('error', () => {});
    await session.client.ping();
    const kind = given.peer === 'redlock-1ms' ? { retryCount: -1, retryDelay: 1, retryJitter: 1 } : {};
    session.redlock = new Redlock([session.client], kind);
    session.redlock.on('clientError', () => {});
    return session;
  }

  async run(given) {
    this.start = BigInt(given.start);
    this.end = BigInt(given.end);
    this.through = given.through === '1';
    this.schedule = given.schedule
      && fs.readFileSync(given.schedule, 'utf8').trim().split('\n').map(BigInt);
    this.out = fs.openSync(given.out, 'w');
    this.failures = 0;
    this.records = [];
    const threads = [];
    for (let i = 0; i < Number(this.given.threads); i++) threads.push(this.thread(i));
    await Promise.all(threads);
    fs.writeSync(this.out, new Uint8Array(BigUint64Array.from(this.records).buffer));
    fs.closeSync(this.out);
    return this.failures;
  }

  async thread(thread) {
    const { given, end, schedule, through, redlock } = this;
    const own = given.own === '1' ? `-${given.process}-${thread}` : '';
    const name = given.name + own;
    const [inside, spread, rest] = [given.inside, given.spread, given.rest].map(BigInt);
    const lease = Number(given.lease);
    await sleepUntil(this.start);
    for (let turn = 0; ; turn++) {
      let asked = now();
      if (schedule) {
        if (turn === schedule.length) return;
        asked = schedule[turn];
        await sleepUntil(asked);
      } else if (asked >= end) return;
      let lock;
      while (!lock) {
        try {
          lock = await redlock.lock(name, lease);
        } catch (error) {
          this.failures++;
          if (now() >= end) {
            this.records.push(BigInt(thread), asked, 0n, now());
            return;
          }
        }
      }
      const granted = now();
      if (through) {
        const record = BigUint64Array.of(BigInt(thread), asked, granted, granted);
        fs.writeSync(this.out, new Uint8Array(record.buffer));
      }
      await work(granted + inside + (spread / 16n) * BigInt((turn * 5) % 16));
      const released = now();
      try {
        await lock.unlock();
      } catch (error) {
        this.failures++;
      }
      if (!through) this.records.push(BigInt(thread), asked, granted, released);
      if (rest > 0n) await sleepUntil(now() + rest);
    }
  }
}

const main = async () => {
  let sessions = {};
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [verb, ...words] = line.split(' ');
    const given = Object.fromEntries(words.map((word) => word.split(/=(.*)/s).slice(0, 2)));
    if (verb === 'prepare') {
      try {
        sessions[given.id] = await Session.prepare(given);
        console.log('ready');
      } catch (error) {
        console.log('error', String(error));
      }
    } else if (verb === 'go') {
      console.log('done', await sessions[given.id].run(given));
    } else if (verb === 'close') {
      Object.values(sessions).forEach((session) => session.client.disconnect());
      sessions = {};
      console.log('closed');
    }
  }
  process.exit(0);
};

main();
