package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// connectRedis connects redislock or redsync, over go-redis.
func connectRedis(given options, names []string) ([]acquire, func(), error) {
	address, err := redis.ParseURL(given["url"])
	if err != nil {
		return nil, nil, err
	}
	client := redis.NewClient(address)
	closed := func() { client.Close() }
	if err := client.Ping(context.Background()).Err(); err != nil {
		return nil, closed, err
	}
	locks := redislock.New(client)
	sync := redsync.New(goredis.NewPool(client))
	var threads []acquire
	for _, name := range names {
		thread := locker(given["peer"], locks, sync, name, given.lease())
		if thread == nil {
			return nil, closed, errors.New("unknown peer")
		}
		threads = append(threads, thread)
	}
	return threads, closed, nil
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

// connectRueidis connects a locker of rueidislock, which the threads share.
func connectRueidis(given options, names []string) ([]acquire, func(), error) {
	// rueidis does not accept a URL that ends with a slash.
	address, err := redis.ParseURL(given["url"])
	if err != nil {
		return nil, nil, err
	}
	settings := rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{address.Addr}},
	}
	if given["peer"] == "rueidislock-one" {
		// rueidislock's documentation recommends both for a single server.
		settings.KeyMajority = 1
		settings.NoLoopTracking = true
	}
	locker, err := rueidislock.NewLocker(settings)
	if err != nil {
		return nil, nil, err
	}
	var threads []acquire
	for _, name := range names {
		threads = append(threads, func() (func() error, error) {
			_, cancel, err := locker.WithContext(context.Background(), name)
			// The function returns when the keys are deleted.
			return func() error { cancel(); return nil }, err
		})
	}
	return threads, locker.Close, nil
}
