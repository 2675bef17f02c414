package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// connectEtcd opens a session for each thread, because mutexes of the same session do not exclude
// each other. The sessions share a client.
func connectEtcd(given options, names []string) ([]acquire, func(), error) {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{given["url"]}})
	if err != nil {
		return nil, nil, err
	}
	var sessions []*concurrency.Session
	closed := func() {
		for _, session := range sessions {
			session.Close()
		}
		client.Close()
	}
	var threads []acquire
	for _, name := range names {
		ttl := concurrency.WithTTL(int(given.lease() / time.Second))
		session, err := concurrency.NewSession(client, ttl)
		if err != nil {
			return nil, closed, err
		}
		sessions = append(sessions, session)
		mutex := concurrency.NewMutex(session, name)
		threads = append(threads, func() (func() error, error) {
			err := mutex.Lock(ctx)
			return func() error { return mutex.Unlock(ctx) }, err
		})
	}
	return threads, closed, nil
}
