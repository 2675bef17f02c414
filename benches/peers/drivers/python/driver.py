"""A driver of python-redis-lock. src/drive/mod.rs describes what it reads and writes."""

import os
import struct
import sys
import threading
import time

import redis
import redis_lock

now = time.monotonic_ns


def sleep_until(at):
    time.sleep(max(0, at - now()) / 1e9)


def work(until):
    """Keeps the core busy for a short time, and sleeps for a long one."""
    if until - now() > 100_000:
        sleep_until(until)
    while now() < until:
        pass


class Session:
    def __init__(self, given):
        self.client = redis.StrictRedis.from_url(given["url"])
        self.client.ping()
        self.inside, self.spread = int(given["inside"]), int(given["spread"])
        self.rest = int(given["rest"])
        self.locks = []
        for thread in range(int(given["threads"])):
            own = f"-{given['process']}-{thread}" if given["own"] == "1" else ""
            expire = int(given["lease"]) // 1000
            self.locks.append(redis_lock.Lock(self.client, given["name"] + own, expire=expire))

    def run(self, given):
        self.start, self.end = int(given["start"]), int(given["end"])
        self.through = given.get("through") == "1"
        self.schedule = None
        if "schedule" in given:
            with open(given["schedule"]) as file:
                self.schedule = [int(line) for line in file]
        self.out = os.open(given["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.failures = 0
        self.records = [[] for _ in self.locks]
        threads = [threading.Thread(target=self.thread, args=it) for it in enumerate(self.locks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for thread, records in enumerate(self.records):
            for record in records:
                os.write(self.out, struct.pack("<4Q", thread, *record))
        os.close(self.out)
        return self.failures

    def thread(self, thread, lock):
        write = self.records[thread].append
        sleep_until(self.start)
        turn = 0
        while True:
            asked = now()
            if self.schedule is not None:
                if turn == len(self.schedule):
                    return
                asked = self.schedule[turn]
                sleep_until(asked)
            elif asked >= self.end:
                return
            while True:
                try:
                    if lock.acquire():
                        break
                except Exception:
                    pass
                self.failures += 1
                if now() >= self.end:
                    write((asked, 0, now()))
                    return
            granted = now()
            if self.through:
                os.write(self.out, struct.pack("<4Q", thread, asked, granted, granted))
            work(granted + self.inside + self.spread // 16 * (turn * 5 % 16))
            turn += 1
            released = now()
            try:
                lock.release()
            except Exception:
                self.failures += 1
            if not self.through:
                write((asked, granted, released))
            if self.rest:
                time.sleep(self.rest / 1e9)


def main():
    sessions = {}
    for line in sys.stdin:
        verb, *words = line.split()
        given = dict(word.split("=", 1) for word in words)
        if verb == "prepare":
            try:
                sessions[given["id"]] = Session(given)
                print("ready", flush=True)
            except Exception as error:
                print("error", repr(error), flush=True)
        elif verb == "go":
            print("done", sessions[given["id"]].run(given), flush=True)
        elif verb == "close":
            for session in sessions.values():
                session.client.close()
            sessions = {}
            print("closed", flush=True)


main()
