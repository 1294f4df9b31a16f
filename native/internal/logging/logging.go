// Package logging writes the few lines that a hook or the runtime wrapper has to say: for people on standard error, and
// in the two formats of runc into log files, from which container runtimes take the reason of a failed start.
package logging

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Level is how much a line matters; lower is more urgent.
type Level int

// The levels of runc and of config.toml's log-level.
const (
	Error Level = iota
	Warning
	Info
	Debug
	Trace
)

var levelNames = [...]string{"error", "warning", "info", "debug", "trace"}

// ParseLevel reads a level's name as config.toml has it ("warn", "fatal" and "panic" are known too).
func ParseLevel(name string) (Level, error) {
	switch folded := strings.ToLower(name); folded {
	case "panic", "fatal":
		return Error, nil
	case "warn":
		return Warning, nil
	default:
		for level, known := range levelNames {
			if folded == known {
				return Level(level), nil
			}
		}
	}
	return Info, fmt.Errorf("invalid log-level '%s'; use one of %s", name, strings.Join(levelNames[:], ", "))
}

// Format is how a line is written.
type Format int

const (
	// Plain is for people: "warning: text".
	Plain Format = iota
	// Text is runc's: time="..." level=warning msg="text".
	Text
	// JSON is runc's with --log-format=json.
	JSON
)

// Sink is one place that lines go to.
type Sink struct {
	Writer io.Writer
	Level  Level
	Format Format
}

// Logger writes every line to each sink whose level admits it. The zero value says nothing.
type Logger struct {
	sinks []Sink
}

// New is a logger that writes to these sinks.
func New(sinks ...Sink) *Logger { return &Logger{sinks: sinks} }

// Add makes lines go to one more sink.
func (l *Logger) Add(sink Sink) { l.sinks = append(l.sinks, sink) }

// Logf writes a line. A sink that cannot be written to is passed over: a full disk must not stop a container.
func (l *Logger) Logf(level Level, format string, values ...any) {
	var text string
	for _, sink := range l.sinks {
		if level > sink.Level {
			continue
		}
		if text == "" {
			text = shortened(fmt.Sprintf(format, values...))
		}
		_, _ = io.WriteString(sink.Writer, line(sink.Format, level, text))
	}
}

// lineLimit is as much as a person reads; what a container asks for may be of any length.
const lineLimit = 8 << 10

func shortened(text string) string {
	if len(text) <= lineLimit {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes in all)", strings.ToValidUTF8(text[:lineLimit], ""), len(text))
}

// Errorf says why something failed.
func (l *Logger) Errorf(format string, values ...any) { l.Logf(Error, format, values...) }

// Warningf says what was passed over.
func (l *Logger) Warningf(format string, values ...any) { l.Logf(Warning, format, values...) }

// Infof says what was decided.
func (l *Logger) Infof(format string, values ...any) { l.Logf(Info, format, values...) }

// Debugf says what was done.
func (l *Logger) Debugf(format string, values ...any) { l.Logf(Debug, format, values...) }

func line(format Format, level Level, text string) string {
	switch format {
	case JSON:
		encoded, _ := json.Marshal(struct { // strings only: it cannot fail
			Level string `json:"level"`
			Msg   string `json:"msg"`
			Time  string `json:"time"`
		}{levelNames[level], text, time.Now().Format(time.RFC3339)})
		return string(encoded) + "\n"
	case Text:
		return fmt.Sprintf("time=%q level=%s msg=%q\n", time.Now().Format(time.RFC3339), levelNames[level], text)
	default:
		return levelNames[level] + ": " + text + "\n"
	}
}
