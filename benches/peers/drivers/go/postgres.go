package main

import (
	"context"
	"errors"
	"hash/fnv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// connectPostgres opens a session for each thread, because a session may take its own lock again.
func connectPostgres(given options, names []string) ([]acquire, func(), error) {
	ctx := context.Background()
	var sessions []*pgx.Conn
	closed := func() {
		for _, session := range sessions {
			session.Close(ctx)
		}
	}
	var threads []acquire
	for _, name := range names {
		session, err := pgx.Connect(ctx, given["url"])
		if err != nil {
			return nil, closed, err
		}
		sessions = append(sessions, session)
		hash := fnv.New64a()
		hash.Write([]byte(name))
		polls := strings.HasSuffix(given["peer"], "-1ms")
		threads = append(threads, advisory(session, int64(hash.Sum64()), polls))
	}
	return threads, closed, nil
}

// advisory takes an advisory lock of a session. With polls, it tries every millisecond.
func advisory(session *pgx.Conn, key int64, polls bool) acquire {
	ctx := context.Background()
	said := func(sql string) (yes bool, err error) {
		err = session.QueryRow(ctx, sql, key).Scan(&yes)
		return yes, err
	}
	release := func() error {
		released, err := said("SELECT pg_advisory_unlock($1)")
		if err == nil && !released {
			err = errors.New("the lock was not held")
		}
		return err
	}
	if !polls {
		return func() (func() error, error) {
			_, err := session.Exec(ctx, "SELECT pg_advisory_lock($1)", key)
			return release, err
		}
	}
	return func() (func() error, error) {
		for {
			taken, err := said("SELECT pg_try_advisory_lock($1)")
			if taken || err != nil {
				return release, err
			}
			time.Sleep(time.Millisecond)
		}
	}
}
