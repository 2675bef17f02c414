// A driver of bsm/redislock and redsync. src/drive/mod.rs describes what it reads and writes.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

type options map[string]string

func (o options) number(key string) int64 {
	number, err := strconv.ParseInt(o[key], 10, 64)
	if err != nil {
		panic(fmt.Sprintf("%s=%q is no number", key, o[key]))
	}
	return number
}

// acquire returns a function that releases the lock.
type acquire func() (func() error, error)

type session struct {
	options options
	client  *redis.Client
	threads []acquire
}

func now() int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &time); err != nil {
		panic(err)
	}
	return time.Nano()
}

func main() {
	sessions := map[string]*session{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		given := options{}
		for _, word := range words[1:] {
			key, value, _ := strings.Cut(word, "=")
			given[key] = value
		}
		switch words[0] {
		case "prepare":
			prepared, err := prepare(given)
			if err != nil {
				fmt.Println("error", err)
				continue
			}
			sessions[given["id"]] = prepared
			fmt.Println("ready")
		case "go":
			fmt.Println("done", sessions[given["id"]].run(given))
		case "close":
			for _, session := range sessions {
				session.client.Close()
			}
			sessions = map[string]*session{}
			fmt.Println("closed")
		}
	}
}

func prepare(given options) (*session, error) {
	address, err := redis.ParseURL(given["url"])
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(address)
	if err := client.Ping(context.Background()).Err(); err != nil {
		return nil, err
	}
	s := &session{options: given, client: client}
	locks := redislock.New(client)
	sync := redsync.New(goredis.NewPool(client))
	lease := time.Duration(given.number("lease")) * time.Millisecond
	for thread := range int(given.number("threads")) {
		name := given["name"]
		if given["own"] == "1" {
			name = fmt.Sprintf("%s-%s-%d", name, given["process"], thread)
		}
		s.threads = append(s.threads, locker(given["peer"], locks, sync, name, lease))
		if s.threads[thread] == nil {
			return nil, errors.New("unknown peer")
		}
	}
	return s, nil
}

func locker(peer string, locks *redislock.Client, sync *redsync.Redsync, name string, lease time.Duration) acquire {
	ctx := context.Background()
	obtain := func(retry time.Duration) acquire {
		options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)}
		return func() (func() error, error) {
			lock, err := locks.Obtain(ctx, name, lease, options)
			return func() error { return lock.Release(ctx) }, err
		}
	}
	mutex := func(options ...redsync.Option) acquire {
		mutex := sync.NewMutex(name, append(options, redsync.WithExpiry(lease))...)
		return func() (func() error, error) {
			err := mutex.Lock()
			return func() error { _, err := mutex.Unlock(); return err }, err
		}
	}
	switch peer {
	case "redislock":
		return obtain(100 * time.Millisecond)
	case "redislock-1ms":
		return obtain(time.Millisecond)
	case "redsync":
		return mutex()
	case "redsync-1ms":
		return mutex(redsync.WithTries(1<<30), redsync.WithRetryDelay(time.Millisecond))
	}
	return nil
}

// run lets all threads go, and returns how many calls failed.
func (s *session) run(given options) int {
	out, err := os.Create(given["out"])
	if err != nil {
		panic(err)
	}
	defer out.Close()
	through := given["through"] == "1"
	var schedule []int64
	if path := given["schedule"]; path != "" {
		content, err := os.ReadFile(path)
		if err != nil {
			panic(err)
		}
		for _, line := range strings.Fields(string(content)) {
			at, _ := strconv.ParseInt(line, 10, 64)
			schedule = append(schedule, at)
		}
	}
	failures := make([]int, len(s.threads))
	records := make([]bytes.Buffer, len(s.threads))
	var threads sync.WaitGroup
	for thread := range s.threads {
		threads.Go(func() {
			write := func(asked, granted, released int64) {
				var record [32]byte
				for at, value := range []int64{int64(thread), asked, granted, released} {
					binary.LittleEndian.PutUint64(record[at*8:], uint64(value))
				}
				if through {
					out.Write(record[:])
				} else {
					records[thread].Write(record[:])
				}
			}
			failures[thread] = s.thread(thread, given.number("start"), given.number("end"), schedule, through, write)
		})
	}
	threads.Wait()
	sum := 0
	for thread := range s.threads {
		sum += failures[thread]
		out.Write(records[thread].Bytes())
	}
	return sum
}

func (s *session) thread(thread int, start, end int64, schedule []int64, through bool, write func(a, g, r int64)) int {
	inside, spread := s.options.number("inside"), s.options.number("spread")
	rest := s.options.number("rest")
	failures := 0
	sleepUntil(start)
	for turn := 0; ; turn++ {
		asked := now()
		if schedule != nil {
			if turn == len(schedule) {
				return failures
			}
			asked = schedule[turn]
			sleepUntil(asked)
		} else if asked >= end {
			return failures
		}
		release, err := s.threads[thread]()
		for err != nil {
			failures++
			if now() >= end {
				write(asked, 0, now())
				return failures
			}
			release, err = s.threads[thread]()
		}
		granted := now()
		if through {
			write(asked, granted, granted)
		}
		work(granted + inside + spread/16*(int64(turn)*5%16))
		released := now()
		if release() != nil {
			failures++
		}
		if !through {
			write(asked, granted, released)
		}
		if rest > 0 {
			time.Sleep(time.Duration(rest))
		}
	}
}

func sleepUntil(at int64) {
	time.Sleep(time.Duration(at - now()))
}

// work keeps its core busy for a short time, and sleeps for a long one.
func work(until int64) {
	if until-now() > 100_000 {
		sleepUntil(until)
	}
	for now() < until {
	}
}
