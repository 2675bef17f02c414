// A driver of Go's libraries. src/drive/mod.rs describes its input and output.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

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

func (o options) lease() time.Duration {
	return time.Duration(o.number("lease")) * time.Millisecond
}

// acquire returns a function that releases the lock.
type acquire func() (func() error, error)

type session struct {
	options options
	threads []acquire
	close   func()
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
				session.close()
			}
			sessions = map[string]*session{}
			fmt.Println("closed")
		}
	}
}

// connect returns an acquire function for each thread, and a function that closes the connections.
// If there is an error, the second function may be nil.
type connect func(given options, names []string) ([]acquire, func(), error)

var peers = map[string]connect{
	"redislock":       connectRedis,
	"redislock-1ms":   connectRedis,
	"redsync":         connectRedis,
	"redsync-1ms":     connectRedis,
	"rueidislock":     connectRueidis,
	"rueidislock-one": connectRueidis,
	"postgres":        connectPostgres,
	"postgres-1ms":    connectPostgres,
	"etcd":            connectEtcd,
}

func prepare(given options) (*session, error) {
	connect := peers[given["peer"]]
	if connect == nil {
		return nil, errors.New("unknown peer")
	}
	var names []string
	for thread := range int(given.number("threads")) {
		name := given["name"]
		if given["own"] == "1" {
			name = fmt.Sprintf("%s-%s-%d", name, given["process"], thread)
		}
		names = append(names, name)
	}
	threads, closed, err := connect(given, names)
	if err != nil {
		if closed != nil {
			closed()
		}
		return nil, err
	}
	return &session{options: given, threads: threads, close: closed}, nil
}

// run starts all threads, and returns the number of calls that failed.
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

// work keeps its core busy if the time is short, and sleeps if it is long.
func work(until int64) {
	if until-now() > 100_000 {
		sleepUntil(until)
	}
	for now() < until {
	}
}
