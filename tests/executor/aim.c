/* Interrupts one thread at the n-th bytecode that it runs: SIGINT as its C handler notes it, for
 * the interpreter to find wherever it looks next. Declared here, as Python.h need not be there. */
typedef struct _object Object;
typedef int (*Tracer)(Object *, Object *, int, Object *);

extern Object _Py_TrueStruct;
extern int PyObject_SetAttrString(Object *, const char *, Object *);
extern void PyErr_Clear(void);
extern void PyErr_SetInterrupt(void);
extern void PyEval_SetTrace(Tracer, Object *);
extern unsigned long PyThread_get_thread_ident(void);

enum { CALL = 0, OPCODE = 7 };

static long left, passed;
static unsigned long target;

/* Python 3.12 and newer: the callback of sys.monitoring. */
void pass(Object *code, long offset) {
    (void)code, (void)offset;
    if (PyThread_get_thread_ident() != target)
        return;
    passed++;
    if (--left == 0)
        PyErr_SetInterrupt();
}

static int trace(Object *self, Object *frame, int what, Object *arg) {
    (void)self, (void)arg;
    if (what == CALL && PyObject_SetAttrString(frame, "f_trace_opcodes", &_Py_TrueStruct))
        PyErr_Clear();
    if (what == OPCODE)
        pass(0, 0);
    return 0;
}

void at(long number) {
    left = number, passed = 0, target = PyThread_get_thread_ident();
}

/* Before Python 3.12. */
void follow(void) { PyEval_SetTrace(trace, 0); }

long count(void) {
    left = 0;
    return passed;
}
