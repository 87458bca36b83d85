// River: the program of this peer in `make bench`. bench/peers/program.py has the contract of its roles.
//
// BENCH_SETTING=default: 100 workers and the library's pauses between fetches; anything else: the fastest that was found.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"golang.org/x/sys/unix"
)

const (
	queue       = "bench"
	batch       = 10_000
	connections = 8 // of a worker: it fetches and completes in batches
	pace        = 10 * time.Millisecond
	saying      = 20 * time.Millisecond

	cooldown = 2 * time.Millisecond // between two fetches; the library's default is 100 ms
	waiting  = "waiting"            // a queue that nothing is ever put into: the client runs, connected, before it is given `bench`
)

var (
	publishers = number("BENCH_PUBLISHERS", 8)
	slots      = number("BENCH_SLOTS", 200)
	handler    = time.Duration(number("BENCH_HANDLER_MS", 0)) * time.Millisecond
	delay      = time.Duration(number("BENCH_DELAY_SEC", 0)) * time.Second
	stamps     = os.Getenv("BENCH_STAMPS") == "1"
	usual      = os.Getenv("BENCH_SETTING") == "default"
	text       = strings.Repeat("x", 180)
)

// Args is the payload of a job.
type Args struct {
	N    int    `json:"n"`
	Text string `json:"text"`
}

// Kind is River's name of it.
func (Args) Kind() string { return "bench" }

// InsertOpts puts it into the measured queue.
func (Args) InsertOpts() river.InsertOpts { return river.InsertOpts{Queue: queue} }

func number(name string, otherwise int) int {
	if value, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return value
	}
	return otherwise
}

// now is CLOCK_MONOTONIC, as in every other program of the run.
func now() float64 {
	var at unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &at))
	return float64(at.Sec) + float64(at.Nsec)/1e9
}

func usage() (cpu float64, rss int64) {
	var used unix.Rusage
	must(unix.Getrusage(unix.RUSAGE_SELF, &used))
	seconds := func(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(used.Utime) + seconds(used.Stime), used.Maxrss * 1024
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var out sync.Mutex

func say(document map[string]any) {
	line, err := json.Marshal(document)
	must(err)
	out.Lock()
	defer out.Unlock()
	_, err = os.Stdout.Write(append(line, '\n'))
	must(err)
}

func timed(work func()) {
	began := now()
	before, _ := usage()
	work()
	after, _ := usage()
	say(map[string]any{"seconds": now() - began, "cpu": after - before})
}

// pool is connected when it is returned.
func pool(ctx context.Context, size int) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(os.Getenv("BENCH_URL"))
	must(err)
	config.MaxConns = int32(size)
	made, err := pgxpool.NewWithConfig(ctx, config)
	must(err)
	var held []*pgxpool.Conn
	for range size {
		connection, err := made.Acquire(ctx)
		must(err)
		held = append(held, connection)
	}
	for _, connection := range held {
		connection.Release()
	}
	return made
}

// client has the pause between fetches even where it only inserts: it is also the pause between its notifications.
func client(from *pgxpool.Pool, config *river.Config) *river.Client[pgx.Tx] {
	if !usual {
		config.FetchCooldown = cooldown
	}
	config.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	made, err := river.NewClient(riverpgxv5.New(from), config)
	must(err)
	return made
}

func prepare(ctx context.Context) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool(ctx, 1)), &rivermigrate.Config{
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	must(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	must(err)
}

// fill is InsertManyFast, which is River's COPY.
func fill(ctx context.Context, count int) {
	to := client(pool(ctx, 1), &river.Config{})
	timed(func() {
		for from := 0; from < count; from += batch {
			some := make([]river.InsertManyParams, 0, batch)
			for n := from; n < min(from+batch, count); n++ {
				params := river.InsertManyParams{Args: Args{N: n, Text: text}}
				if delay > 0 {
					params.InsertOpts = &river.InsertOpts{Queue: queue, ScheduledAt: time.Now().Add(delay)}
				}
				some = append(some, params)
			}
			_, err := to.InsertManyFast(ctx, some)
			must(err)
		}
	})
}

// byPublishers shares the numbers out over goroutines.
func byPublishers(count int, publish func(n int)) {
	var next atomic.Int64
	timed(func() {
		var all sync.WaitGroup
		for range publishers {
			all.Go(func() {
				for n := int(next.Add(1)) - 1; n < count; n = int(next.Add(1)) - 1 {
					publish(n)
				}
			})
		}
		all.Wait()
	})
}

func publish(ctx context.Context, count int) {
	to := client(pool(ctx, publishers), &river.Config{})
	byPublishers(count, func(n int) {
		_, err := to.Insert(ctx, Args{N: n, Text: text}, nil)
		must(err)
	})
}

// caller publishes in a transaction that is the caller's own.
func caller(ctx context.Context, count int) {
	lines := pool(ctx, publishers)
	to := client(lines, &river.Config{})
	byPublishers(count, func(n int) {
		must(pgx.BeginFunc(ctx, lines, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "insert into bench_order (n) values ($1)", n); err != nil {
				return err
			}
			_, err := to.InsertTx(ctx, tx, Args{N: n, Text: text}, nil)
			return err
		}))
	})
}

// paced says afterwards what there is to say, in order not to disturb.
func paced(ctx context.Context, count int) {
	to := client(pool(ctx, 1), &river.Config{})
	returned := make([]float64, count)
	for n := range count {
		time.Sleep(time.Duration((0.5 + rand.Float64()) * float64(pace)))
		_, err := to.Insert(ctx, Args{N: n, Text: text}, nil)
		must(err)
		returned[n] = now()
	}
	for n, at := range returned {
		say(map[string]any{"n": n, "returned": at})
	}
}

// worker is the handler of the jobs; it counts them.
type worker struct {
	river.WorkerDefaults[Args]
	done  atomic.Int64
	first atomic.Pointer[float64]
	last  atomic.Pointer[float64]
}

// Work handles a job.
func (w *worker) Work(ctx context.Context, job *river.Job[Args]) error {
	at := now()
	w.first.CompareAndSwap(nil, &at)
	w.last.Store(&at)
	if stamps {
		say(map[string]any{"n": job.Args.N, "start": at})
	}
	if handler > 0 {
		time.Sleep(handler)
	}
	w.done.Add(1)
	return nil
}

func (w *worker) tell() {
	said := int64(0)
	for range time.Tick(saying) {
		if done := w.done.Load(); done != said {
			said = done
			say(map[string]any{"done": done})
		}
	}
}

func settings() river.QueueConfig {
	switch {
	case handler > 0:
		return river.QueueConfig{MaxWorkers: slots}
	case usual:
		return river.QueueConfig{MaxWorkers: 100}
	default:
		return river.QueueConfig{MaxWorkers: 2000}
	}
}

func work(ctx context.Context) {
	handling := &worker{}
	workers := river.NewWorkers()
	river.AddWorker(workers, handling)
	config := &river.Config{Queues: map[string]river.QueueConfig{waiting: {MaxWorkers: 1}}, Workers: workers}
	from := client(pool(ctx, connections), config)
	must(from.Start(ctx))
	say(map[string]any{"ready": true})
	lines := bufio.NewScanner(os.Stdin)
	if !lines.Scan() || lines.Text() != "go" {
		os.Exit(1) // the frame has gone
	}
	before, _ := usage()
	go handling.tell()
	must(from.Queues().Add(queue, settings()))
	lines.Scan()
	after, rss := usage()
	last := map[string]any{"done": handling.done.Load(), "cpu": after - before, "rss": rss}
	last["first"], last["last"] = handling.first.Load(), handling.last.Load()
	say(last)
	stopping, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := from.Stop(stopping); err != nil {
		fmt.Fprintln(os.Stderr, "stopping:", err)
	}
}

func main() {
	ctx := context.Background()
	roles := map[string]func(count int){
		"prepare": func(int) { prepare(ctx) },
		"fill":    func(count int) { fill(ctx, count) },
		"publish": func(count int) { publish(ctx, count) },
		"caller":  func(count int) { caller(ctx, count) },
		"paced":   func(count int) { paced(ctx, count) },
		"work":    func(int) { work(ctx) },
	}
	role, count := "", 0
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	if len(os.Args) > 2 {
		var err error
		count, err = strconv.Atoi(os.Args[2])
		must(err)
	}
	run, known := roles[role]
	if !known {
		fmt.Fprintf(os.Stderr, "role %q: there is prepare, fill, publish, caller, paced, work\n", role)
		os.Exit(2)
	}
	run(count)
}
